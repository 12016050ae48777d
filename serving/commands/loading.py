"""Opening of the configured bundles, and loading of the first encoder while the server's modules are imported."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from models.bundle.sources import DEFAULT, as_bundle
from models.cli.ending import in_native_thread
from models.runtimes.base import RuntimeUnavailable
from models.runtimes.openvino import OpenVino
from serving.inference.engine import Engine, EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.operations import logs
from serving.settings import Settings

log = logging.getLogger("serving")
Opened = tuple[Settings, Sequence[Model]]
"""Settings that name only bundles, and the opened model of each bundle."""


def begin(settings: Settings) -> Future[Opened]:
    """Configure the log, and open the bundles in the background. Then load the first encoder, also in the background.

    Return a future of two values: the settings that `with_bundles` returns, and the opened models. The future ends when
    the bundles are open and the loading of the first encoder has begun. The future raises the errors of `with_bundles`
    and `opened_models`.

    When `load` of the first model is called for the first time, it waits until the loading in the background ends, and
    returns the loaded encoder. Later calls load the encoder again.
    """
    logs.configure(settings.log_format)
    _limit_tokenizers(settings)  # here, because the environment must not change while other threads read it
    if settings.engine in ("auto", OpenVino.name) and settings.device != "cuda":
        with suppress(RuntimeUnavailable):  # another engine may serve; otherwise `opened_models` raises this error
            OpenVino.facts()  # opens OpenVINO in this thread, because Python runs signal handlers here

    def opened() -> Opened:
        own = with_bundles(settings)
        first, *others = opened_models(own)
        loading = [in_native_thread(lambda: first.load(EngineOptions.of(own)), "loading")]

        def load(options: EngineOptions) -> Engine:
            # The future is dropped, because it would keep the engine in memory after a reload of the bundles.
            return loading.pop().result() if loading else first.load(options)

        return own, [replace(first, load=load), *others]

    return in_native_thread(opened, "opening")


def opened_models(settings: Settings) -> list[Model]:
    """Open and check the configured bundles.

    Raises:
        BundleError, EngineError: this machine can't serve a bundle.
    """
    _limit_tokenizers(settings)
    log.info("checking the bundle in %s", " and ".join(map(str, settings.bundles)))
    models = [ENGINES[settings.engine](folder) for folder in settings.bundles]
    for model in models:
        model.check(EngineOptions.of(settings))
    return models


def with_bundles(settings: Settings) -> Settings:
    """Replace each configured encoder that is not a bundle by a bundle in the data folder. Return the new settings.

    If no encoder is configured and the default folder does not exist, the package's own trained encoder is served.
    With the fake engine, which reads no folder, the settings do not change.

    Raises:
        BundleError, SourceError, AdapterError, Failed: see `as_bundle`.
    """
    if settings.engine == "fake":
        return settings
    given = settings.bundles
    if "bundle" not in settings.model_fields_set and not os.path.lexists(settings.bundle):
        log.info(
            "%s does not exist, so the server uses %s; restart the server after a promotion", settings.bundle, DEFAULT
        )
        given = (Path(DEFAULT),)
    folders = [as_bundle(str(folder), settings.data / "encoders") for folder in given]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def _limit_tokenizers(settings: Settings) -> None:
    """Limit the threads of the tokenizers, unless the environment already does."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(EngineOptions.of(settings).threads))
