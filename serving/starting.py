"""What a server, and a command that does its work without one, are made of."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence

from serving import descriptors
from serving.engines import ENGINES
from serving.ports import Model, Store
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES

log = logging.getLogger("serving")


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
    try:
        return Service(settings, models[0], store, prepare, models[1:])
    except BaseException:
        store.close()
        raise
