"""Construction of the service, for the server and for commands that need no server."""

from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from models import cpus
from models.bundle.disk import make_folder
from models.errors import Failed
from serving.commands.loading import opened_models, with_bundles
from serving.corpora.aliases import ALIASES, Aliases
from serving.corpora.backend import Backend
from serving.corpora.corpora import Corpora
from serving.corpora.open_corpus import Indexes
from serving.corpora.ports import RESERVED_BYTES, Store
from serving.corpora.stores import STORES
from serving.inference.engine import Model
from serving.service import Service
from serving.settings import Settings

log = logging.getLogger("serving")


def opened_service(
    settings: Settings, models: Sequence[Model], prepare: Callable[[Service], Awaitable[None]] | None = None
) -> Service:
    """Create a service with the given models. See `Service` for `prepare`.

    Raises:
        BundleError: two models have the same name, or the first model is a cross-encoder.
        StoreError, Failed: see `opened_corpora`.
    """
    corpora = opened_corpora(settings)
    make_folder(settings.data)  # corpora in memory or on Milvus have not created the folder
    if shutil.disk_usage(settings.data).free < RESERVED_BYTES:
        log.warning(
            "the disk of %s is full: the server refuses writes (507) until the disk has free space",
            settings.data.absolute(),
        )
    try:
        return Service(settings, models[0], corpora, prepare, models[1:])
    except BaseException:
        corpora.close()
        raise


def opened_corpora(settings: Settings) -> Backend:
    """Open the corpora of the data folder, or the corpora on Milvus.

    Raises:
        StoreError: another process has opened the data folder, or the data folder or Milvus can't be used.
        Failed: Milvus can't be reached or is not ready.
    """
    raise_limit()
    if settings.on_milvus:
        from serving.corpora.stores.milvus.corpora import MilvusCorpora  # this module needs the extra `milvus`

        return MilvusCorpora(settings)
    return local_corpora(settings, STORES[settings.store](settings.data / "corpora"))


def corpus_of(settings: Settings, name: str) -> str:
    """Return the name of the corpus to which the alias `name` in the data folder points.

    If `name` is not an alias, return `name`.

    Raises:
        StoreError: the aliases can't be read.
    """
    return Aliases(settings.data / ALIASES).corpora.get(name, name)


def local_corpora(settings: Settings, store: Store) -> Corpora:
    """Return the corpora that `store` keeps, with their indexes in the data folder. On an error, close `store`.

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
    """Run a service with the configured bundles and corpora while the `with` block runs.

    The `with` block begins when the service is ready.

    Raises:
        Failed: the encoders or the corpora can't be loaded.
    """
    settings = with_bundles(settings)
    service = opened_service(settings, opened_models(settings))
    async with service.running():
        await service.loaded.wait()
        if service.health.state != "ready":
            raise Failed(service.health.reason)
        yield service


def raise_limit() -> None:
    """Raise the limit on open files to the maximum that the system allows.

    The usual default is 1,024. Each client needs one file descriptor, and the corpora need some hundreds.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # the kernel's own limit may be lower than an unlimited maximum
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
