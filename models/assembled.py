"""Bundles of encoders that are given by name, without torch."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from models import adapter, bundle
from models.bundle import BundleError
from models.sources import MINILM, recorded

log = logging.getLogger(__name__)


def as_bundle(name: str, kept: Path) -> Path:
    """Return the folder of a bundle: `name` itself, or the bundle of the encoder with this name, cached in `kept`.

    A separate process makes the bundle (`isosphere export`), so that its memory is freed afterwards.

    Raises:
        BundleError: the bundle can't be made; the message is from `isosphere export`.
        SourceError, AdapterError: the encoder does not exist or is damaged.
    """
    given = Path(name)
    if not (adapter.is_adapter(given) or (not given.exists() and (name == MINILM or name.startswith(f"{MINILM}+")))):
        return given
    said = recorded(name)
    if said is None:
        raise BundleError(
            f"{name}: torch has to export it: `isosphere export {name} --out FOLDER`, then use that folder"
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
