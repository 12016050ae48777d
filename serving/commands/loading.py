"""Opening of the configured bundles."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from models.bundle.sources import DEFAULT, as_bundle
from serving.inference.engine import EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.settings import Settings

log = logging.getLogger("serving")


def opened_models(settings: Settings) -> list[Model]:
    """Open and check the configured bundles.

    Raises:
        BundleError, EngineError: this machine can't serve a bundle.
    """
    # Limits the threads of the tokenizers.
    os.environ.setdefault("RAYON_NUM_THREADS", str(EngineOptions.of(settings).threads))
    log.info("checking the bundle in %s", " and ".join(map(str, settings.bundles)))
    models = [ENGINES[settings.engine](folder) for folder in settings.bundles]
    for model in models:
        model.check(EngineOptions.of(settings))
    return models


def with_bundles(settings: Settings) -> Settings:
    """Replace each configured encoder that is not a bundle by a bundle in the data folder. Return the new settings.

    If no encoder is configured and the default folder does not exist, the package's own trained encoder is served.

    Raises:
        BundleError, SourceError, AdapterError: see `as_bundle`.
    """
    given = settings.bundles
    if "bundle" not in settings.model_fields_set and not os.path.lexists(settings.bundle):
        log.info(
            "%s does not exist, so the server uses %s; restart the server after a promotion", settings.bundle, DEFAULT
        )
        given = (Path(DEFAULT),)
    folders = [as_bundle(str(folder), settings.data / "encoders") for folder in given]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})
