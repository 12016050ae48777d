"""Construction of a service for the server, and for commands that work without a server."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence

from models.assembled import as_bundle
from serving import descriptors
from serving.engines import ENGINES
from serving.ports import EngineOptions, Model, Store
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES
from serving.stores.corpus_file import RESERVED_BYTES

log = logging.getLogger("serving")


def with_bundles(settings: Settings) -> Settings:
    """Replace each encoder that is not a bundle by a bundle, which is kept in the data folder.

    Raises:
        BundleError, SourceError, AdapterError: see `as_bundle`.
    """
    folders = [as_bundle(str(folder), settings.data / "encoders") for folder in settings.bundles]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def opened_models(settings: Settings) -> list[Model]:
    """Open and check the bundles that the settings name.

    Raises:
        BundleError, EngineError: a bundle can't be served here.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(EngineOptions.of(settings).threads))  # the tokenizers' pool
    log.info("checking the bundle in %s", " and ".join(map(str, settings.bundles)))
    models = [ENGINES[settings.engine](folder) for folder in settings.bundles]
    for model in models:
        model.check(EngineOptions.of(settings))
    return models


def opened_store(settings: Settings) -> Store:
    """Open the corpora in the data folder. Only one process may do so.

    Raises:
        StoreError: another process has opened the folder, or it can't be used.
    """
    descriptors.raise_limit()
    return STORES[settings.store](settings.data / "corpora")


def opened_service(
    settings: Settings, models: Sequence[Model], prepare: Callable[[Service], Awaitable[None]] | None = None
) -> Service:
    """Create a service of these models; see `Service` for `prepare`.

    Raises:
        BundleError: two models have the same name.
        StoreError: see `opened_store`.
    """
    store = opened_store(settings)
    if shutil.disk_usage(settings.data).free < RESERVED_BYTES:
        log.warning("the disk of %s is full: writes are refused (507) until there is room", settings.data.absolute())
    try:
        return Service(settings, models[0], store, prepare, models[1:])
    except BaseException:
        store.close()
        raise
