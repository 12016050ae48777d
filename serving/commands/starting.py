"""Construction of a service, for the server and for commands without a server."""

from __future__ import annotations

import logging
import os
import resource
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from models import cpus
from models.bundle.disk import make_folder
from models.bundle.sources import DEFAULT, as_bundle
from models.errors import Failed
from serving.corpora.aliases import ALIASES, Aliases
from serving.corpora.backend import Backend
from serving.corpora.corpora import Corpora
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import RESERVED_BYTES, Store
from serving.corpora.stores import STORES
from serving.inference.engine import EngineOptions, Model
from serving.inference.engines import ENGINES
from serving.service import Service
from serving.settings import Settings

log = logging.getLogger("serving")


def opened_service(
    settings: Settings, models: Sequence[Model], prepare: Callable[[Service], Awaitable[None]] | None = None
) -> Service:
    """Create a service with the given models. `Service` describes `prepare`.

    Raises:
        BundleError: two models have the same name.
        StoreError: see `opened_corpora`.
    """
    corpora = opened_corpora(settings)
    make_folder(settings.data)  # corpora in memory, or on Milvus, have not made it
    if shutil.disk_usage(settings.data).free < RESERVED_BYTES:
        log.warning("the disk of %s is full: writes are refused (507) until there is room", settings.data.absolute())
    try:
        return Service(settings, models[0], corpora, prepare, models[1:])
    except BaseException:
        corpora.close()
        raise


def opened_corpora(settings: Settings) -> Backend:
    """Open the corpora of the data folder, or the corpora on Milvus.

    Raises:
        StoreError: another process has opened the data folder, it can't be used, or there is no Milvus.
    """
    if settings.on_milvus:
        from serving.corpora.stores.milvus.corpora import MilvusCorpora  # needs the extra `milvus`

        raise_limit()
        return MilvusCorpora(settings)
    return local_corpora(settings, opened_store(settings))


def corpus_of(settings: Settings, name: str) -> str:
    """Return the name of the corpus to which an alias in the data folder points. Return any other name unchanged.

    Raises:
        StoreError: the aliases can't be read.
    """
    return Aliases(settings.data / ALIASES).corpora.get(name, name)


def local_corpora(settings: Settings, store: Store) -> Corpora:
    """Return the corpora of `store`, with indexes in the data folder.

    Raises:
        StoreError: `--index gpu` is set, but FAISS can't search on a GPU.
    """
    try:
        indexes = Indexes(
            settings.data / "indexes",
            approximate=settings.index != "exact",
            gpu=settings.index == "gpu",
            threads=settings.threads or cpus.available(),
            least=settings.exact_below,
        )
        return Corpora(store, indexes)
    except BaseException:
        store.close()
        raise


@asynccontextmanager
async def ready_service(settings: Settings) -> AsyncIterator[Service]:
    """Run a service of the configured bundles and corpora within the block. The block starts when the service is ready.

    Raises:
        Failed: an encoder can't be loaded.
    """
    settings = with_bundles(settings)
    service = opened_service(settings, opened_models(settings))
    async with service.running():
        await service.loaded.wait()
        if service.health.state != "ready":
            raise Failed(service.health.reason)
        yield service


def opened_store(settings: Settings) -> Store:
    """Open the corpora in the data folder. Only one process can open a data folder at a time.

    Raises:
        StoreError: another process has opened the folder, or it can't be used.
    """
    raise_limit()
    return STORES[settings.store](settings.data / "corpora")


def opened_models(settings: Settings) -> list[Model]:
    """Open and check the configured bundles.

    Raises:
        BundleError, EngineError: a bundle can't be served on this machine.
    """
    os.environ.setdefault("RAYON_NUM_THREADS", str(EngineOptions.of(settings).threads))  # threads of the tokenizers
    log.info("checking the bundle in %s", " and ".join(map(str, settings.bundles)))
    models = [ENGINES[settings.engine](folder) for folder in settings.bundles]
    for model in models:
        model.check(EngineOptions.of(settings))
    return models


def with_bundles(settings: Settings) -> Settings:
    """Return the settings with each encoder that is not a bundle replaced by a bundle in the data folder.

    If no encoder is configured and the default folder does not exist, the trained encoder of the package is used.

    Raises:
        BundleError, SourceError, AdapterError: see `as_bundle`.
    """
    given = settings.bundles
    if "bundle" not in settings.model_fields_set and not os.path.lexists(settings.bundle):
        log.info("%s does not exist: serving %s; restart the server after a promotion", settings.bundle, DEFAULT)
        given = (Path(DEFAULT),)
    folders = [as_bundle(str(folder), settings.data / "encoders") for folder in given]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def raise_limit() -> None:
    """Raise the limit on open files to the system's maximum.

    The usual default is 1,024. Each client uses one file descriptor, and the corpora use some hundreds.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where the maximum is unlimited, the kernel's own limit may be lower
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
