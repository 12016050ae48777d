"""What a server, and a command that does its work without one, are made of."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence

from models.assembled import as_bundle
from serving import descriptors
from serving.engines import ENGINES
from serving.ports import Model, Store
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES
from serving.stores.corpus_file import RESERVED_BYTES

log = logging.getLogger("serving")


def with_bundles(settings: Settings) -> Settings:
    """Replace each encoder that is no bundle by its bundle, which is kept in the data folder.

    Raises:
        BundleError, SourceError, AdapterError: see `as_bundle`.
    """
    folders = [as_bundle(str(folder), settings.data / "encoders") for folder in settings.bundles]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def opened_models(settings: Settings) -> list[Model]:
    """The bundles that the settings name, checked.

    Raises:
        BundleError, EngineError: one can't be served here.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.engine_options.threads))  # the tokenizers' pool
    log.info("checking the bundle in %s", " and ".join(map(str, settings.bundles)))
    models = [ENGINES[settings.engine](folder) for folder in settings.bundles]
    for model in models:
        model.check(settings.engine_options)
    return models


def opened_store(settings: Settings) -> Store:
    """The corpora in the data folder, which nobody else may have open.

    Raises:
        StoreError: somebody has, or the folder can't be used.
    """
    descriptors.raise_limit()
    return STORES[settings.store](settings.data / "corpora")


def opened_service(
    settings: Settings, models: Sequence[Model], prepare: Callable[[Service], Awaitable[None]] | None = None
) -> Service:
    """A service of these models; `prepare` as there.

    Raises:
        BundleError, StoreError: as said above.
    """
    store = opened_store(settings)
    if shutil.disk_usage(settings.data).free < RESERVED_BYTES:
        log.warning("the disk of %s is full: writes are refused (507) until there is room", settings.data.absolute())
    try:
        return Service(settings, models[0], store, prepare, models[1:])
    except BaseException:
        store.close()
        raise
