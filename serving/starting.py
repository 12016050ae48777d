"""What a server, and a command that does its work without one, are made of."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from models import adapter, bundle
from models.bundle import BundleError
from models.sources import MINILM, recorded
from serving import descriptors
from serving.engines import ENGINES
from serving.ports import Model, Store
from serving.service import Service
from serving.settings import Settings
from serving.stores import STORES
from serving.stores.corpus_file import RESERVED_BYTES

log = logging.getLogger("serving")


def with_bundles(settings: Settings) -> Settings:
    """Replace each encoder that is no bundle by the bundle that `python -m models export` makes of it.

    Bundles are kept in the data folder. Another process makes them, so that the server does not keep what is loaded for
    that alone.

    Raises:
        BundleError: one can't be made; the message is that of the command.
        SourceError, AdapterError: there is no such encoder, or it is damaged.
    """
    folders = [_assembled(folder, settings.data / "encoders") for folder in settings.bundles]
    return settings.model_copy(update={"bundle": os.pathsep.join(map(str, folders))})


def _assembled(given: Path, kept: Path) -> Path:
    name = str(given)
    if not (adapter.is_adapter(given) or (not given.exists() and (name == MINILM or name.startswith(f"{MINILM}+")))):
        return given
    said = recorded(name)
    if said is None:
        raise BundleError(
            f"{name}: torch has to export it: `python -m models export {name} --out FOLDER`, then serve that"
        )
    folder = kept / f"{said.name}-{said.fingerprint[:12]}"
    with suppress(BundleError):
        there = bundle.load(folder).manifest
        if (there.fingerprint, there.scores) == (said.fingerprint, said.scores):
            return folder
    log.info("assembling %s in %s, once", name, folder)
    options = ["--out", str(folder), "--name", said.name, "--no-measure"]
    command = [sys.executable, "-m", "models", "export", name, *options]
    made = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if made.returncode:
        lines = [line for line in made.stderr.splitlines() if line.startswith("error: ")]
        reason = lines[-1].removeprefix("error: ") if lines else f"the export ended with status {made.returncode}"
        raise BundleError(f"{name}: {reason}")
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
    if shutil.disk_usage(settings.data).free < RESERVED_BYTES:
        log.warning("the disk of %s is full: writes are refused (507) until there is room", settings.data.absolute())
    try:
        return Service(settings, models[0], store, prepare, models[1:])
    except BaseException:
        store.close()
        raise
