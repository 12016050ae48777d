"""What a server, and a command that does its work without one, are made of."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from models import adapter, bundle
from models.bundle import BundleError
from models.sources import MINILM, manifest_of, shipped
from serving import descriptors
from serving.engines import ENGINES
from serving.ports import Model, Store
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES

log = logging.getLogger("serving")


def with_bundles(settings: Settings) -> Settings:
    """Replace each adapter among the bundles to serve by the bundle that it makes, kept in the data folder.

    Another process assembles it, so that the server does not keep what is loaded for that alone.

    Raises:
        BundleError: it can't be assembled; the message is the one of `python -m models export`.
        SourceError, AdapterError: there is no such adapter, or it is damaged.
    """
    folders = [_assembled(folder, settings.data / "encoders") for folder in settings.bundles]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def _assembled(given: Path, kept: Path) -> Path:
    name = str(given)
    if not (adapter.is_adapter(given) or (not given.exists() and (name == MINILM or name in shipped()))):
        return given
    said, folder = manifest_of(name), kept / given.name
    with suppress(BundleError):
        there = bundle.load(folder).manifest
        if there.fingerprint == said.fingerprint if said else name == MINILM:
            return folder
    log.info("assembling %s in %s, once", name, folder)
    command = [sys.executable, "-m", "models", "export", name, "--out", str(folder), "--no-measure"]
    made = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        raise BundleError(made.stderr.strip().rpartition("\n")[2].removeprefix("error: "))
    return folder


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
