"""The bundle: an encoder as a folder on disk, the one thing that passes from training to serving.

Everything in the folder stands in `manifest.json` with its SHA-256. A folder that lacks a file, holds an altered
one or holds one more is refused: what is served is what was exported, to the byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from models import codes
from models import manifest as manifests
from models.disk import LFS, lfs_pointer
from models.errors import Refused
from models.prompts import not_empty
from models.tokenizer import Tokenizer

FORMAT_VERSION = 1
MOST_JSON_BYTES = 64 << 20
"""Of one file of JSON, which is read whole."""
MOST_FILES = 1000
"""That a manifest lists: a bundle has about ten."""
MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
ONNX = "onnx/model.onnx"
FP32 = "fp32"
"""The precision of `ONNX`; a graph of another one is `onnx/model_<precision>.onnx`."""
FP16_ONNX = "onnx/model_fp16.onnx"
TOKENIZER = "tokenizer.json"
TRANSFORM = "transform.safetensors"
REQUIRED = (TOKENIZER, CONFIG, WEIGHTS, ONNX)
CARD = "README.md"
"""What the hub shows: the bundle in words. Hashed as every file is, for it carries the claims about the others; no
fingerprint changes with it."""
REPORT = "report.json"
"""How the encoder was judged; a promoted bundle carries it. It decides no vector, so no fingerprint changes with it."""
REPORT_PAGE = "report.html"
"""The same to look at, where there is one."""
ENGINES = "engines.json"
"""What was measured where it was exported or promoted, if it was; no fingerprint changes with it either."""
INT8 = "int8.json"
"""The range of int8 output, calibrated at export; it decides codes, not vectors, so no fingerprint changes with it."""
GOLDEN_COSINE = 0.999
"""The lowest cosine to a golden vector, or to the float32 graph's, at which an engine may serve the bundle: any
runtime, any precision."""

VOLATILE_CONFIG = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""Keys of config.json that say who wrote it, not what the encoder computes."""


class BundleError(Refused):
    """A folder is not a whole, unaltered bundle; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A sentence and its embedding at export (unit length, float32), for the self-test of whoever serves it."""

    text: str
    vector: list[float]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What `manifest.json` says; `files` maps each relative path to its SHA-256."""

    format_version: int = FORMAT_VERSION
    name: str
    objective: str | None
    backbone: str
    dim: int
    max_length: int
    pooling: str
    prompts: dict[str, str] = field(default_factory=dict)
    transform: dict[str, Any] | None = None
    """What stands between pooling and the unit vector: its kind and sizes, its weights in `transform.safetensors`."""
    files: dict[str, str]
    fingerprint: str
    run: dict[str, Any] | None = None
    scores: dict[str, float] | None = None
    golden: list[Golden]
    adapter: dict[str, Any] | None = None
    """Of weights that were merged from a base and an adapter: the SHA-256 of both, see `models.adapter`."""


@dataclass(frozen=True)
class Bundle:
    """A verified bundle."""

    folder: Path
    manifest: Manifest

    @property
    def onnx(self) -> Path:
        """The float32 graph: `input_ids`, `attention_mask` to `sentence_embedding` (N, D) and `norm` (N,)."""
        return self.folder / ONNX

    @property
    def graphs(self) -> dict[str, Path]:
        """The graph of each precision, the float32 one first."""
        reduced = {
            path.removeprefix("onnx/model_").removesuffix(".onnx"): self.folder / path
            for path in sorted(self.manifest.files)
            if path.startswith("onnx/model_") and path.endswith(".onnx")
        }
        return {FP32: self.onnx, **reduced}

    @property
    def int8_limit(self) -> float | None:
        """The range of int8 output; None in a bundle from before there was one.

        Raises:
            BundleError: the file holds none.
        """
        if INT8 not in self.manifest.files:
            return None
        try:
            return codes.read(self.folder / INT8)
        except ValueError as error:
            raise BundleError(f"{self.folder / INT8}: {error}") from error

    @property
    def matryoshka(self) -> Sequence[int]:
        """The widths that the encoder says it was trained to be cut to, in config.json's words for it.

        Raises:
            BundleError: they are no list of widths.
        """
        file, config = self.folder / CONFIG, _config(self.folder)
        if widths := config.get("matryoshka_dimensions"):
            if not (
                isinstance(widths, list)
                and all(isinstance(one, int) and 0 < one <= self.manifest.dim for one in widths)
            ):
                raise BundleError(
                    f"{file}: matryoshka_dimensions must be a list of widths from 1 to {self.manifest.dim}"
                )
            return widths
        return range(1, self.manifest.dim + 1) if config.get("is_matryoshka") else ()

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer.

        Raises:
            BundleError: it is none, or has tokens that the encoder has no embedding of.
        """
        try:
            made = Tokenizer(self.tokenizer_file, max_length=self.manifest.max_length)
            made.check_rows(_config(self.folder).get("vocab_size", made.vocab_size))
        except ValueError as error:
            raise BundleError(f"{self.folder}: {error}") from error
        return made

    @property
    def tokenizer_file(self) -> Path:
        """For `models.tokenizer.Tokenizer`."""
        return self.folder / TOKENIZER


def load(folder: Path) -> Bundle:
    """The bundle in `folder`, every hash verified.

    A link to a folder is followed once: what is read later is of this bundle, wherever the link points by then.

    Raises:
        BundleError: no manifest, one that does not parse, or a missing, altered or foreign file.
    """
    if folder.is_symlink():
        folder = folder.parent / folder.readlink()
    manifest = read_manifest(folder / MANIFEST)
    for listed_file in manifest.files:
        if listed_file.endswith(".json"):
            check_size(folder / listed_file)
    listed, present = set(manifest.files), files_of(folder)
    if missing := sorted(listed - present):
        raise BundleError(f"{folder / missing[0]}: missing, though the manifest lists it")
    if foreign := sorted(present - listed):
        raise BundleError(f"{folder / foreign[0]}: not in the manifest; a bundle holds nothing else")
    for path, expected in manifest.files.items():
        if sha256(folder / path) != expected:
            altered = LFS if lfs_pointer(folder / path) else "altered (its SHA-256 is not the manifest's)"
            raise BundleError(f"{folder / path}: {altered}")
    found = fingerprint(folder, manifest)
    of_old = fingerprint(folder, replace(manifest, prompts={}))  # before prompts were part of it
    if manifest.fingerprint not in (found, of_old):
        raise BundleError(f"{folder / MANIFEST}: the fingerprint does not match the files")
    return Bundle(folder, replace(manifest, fingerprint=found))


def write_manifest(folder: Path, **facts: Any) -> Manifest:
    """Hash everything in `folder` and write its manifest from `facts`, the fields that can't be computed."""
    files = {path: sha256(folder / path) for path in sorted(files_of(folder))}
    unsigned = Manifest(files=files, fingerprint="", **facts)
    manifest = replace(unsigned, fingerprint=fingerprint(folder, unsigned))
    (folder / MANIFEST).write_text(dumped(manifest), encoding="utf-8")
    return manifest


def rounded(golden: Sequence[Golden]) -> list[Golden]:
    """Shorten golden vectors to six decimals, for manifests that are kept in the repository."""
    return [replace(one, vector=[round(number, 6) for number in one.vector]) for one in golden]


def dumped(manifest: Manifest) -> str:
    """Format a manifest as JSON with one golden vector a line: indented, its numbers would fill most of the file."""
    fields = asdict(manifest)
    golden = ",\n  ".join(json.dumps(one, ensure_ascii=False, allow_nan=False) for one in fields.pop("golden"))
    text = json.dumps(fields, ensure_ascii=False, indent=1, allow_nan=False)
    return text.removesuffix("\n}") + f',\n "golden": [\n  {golden}\n ]\n}}\n'


def fingerprint(folder: Path, manifest: Manifest) -> str:
    """A hash of all that decides the vectors: weights, architecture, tokenizer, pooling, length, transform, prompts.

    Not of the ONNX bytes or the name: exporting the same encoder again must not cost anyone a re-embedding. A prompt
    that puts nothing before a text is none. Merged weights count as the base and the adapter that they were merged
    from, because the last bits of a matrix product may differ between machines.

    Raises:
        BundleError: `config.json` is no object of JSON.
    """
    decides = {
        "weights": _merged(manifest.adapter) if manifest.adapter else manifest.files[WEIGHTS],
        "config": {key: value for key, value in _config(folder).items() if key not in VOLATILE_CONFIG},
        "tokenizer": manifest.files[TOKENIZER],
        "pooling": manifest.pooling,
        "max_length": manifest.max_length,
    }
    if manifest.transform is not None:
        decides["transform"] = {**manifest.transform, "weights": manifest.files[TRANSFORM]}
    if prompts := not_empty(manifest.prompts):
        decides["prompts"] = prompts
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _merged(adapter: Mapping[str, Any]) -> dict[str, Any]:
    return {name: adapter[name] for name in ("base_sha256", "sha256", "merge_version")}


def _config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise BundleError(f"{file}: not an object")
    return config


def sha256(file: Path) -> str:
    """Hex digest of the file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_manifest(file: Path) -> Manifest:
    """What `file` says; no file of the bundle is looked at.

    Raises:
        BundleError: it is not there, or `parse_manifest` refuses it.
    """
    try:
        check_size(file)
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"{file}: missing; is this the folder of a bundle? `isosphere export` makes one") from None
    except OSError as error:
        raise BundleError(f"{file}: {error.strerror}") from error
    return parse_manifest(content, str(file))


def check_size(file: Path) -> None:
    """Refuse a file of JSON, if it is there, that would fill the memory.

    Raises:
        BundleError: it is too large.
    """
    if file.is_file() and (size := file.stat().st_size) > MOST_JSON_BYTES:
        raise BundleError(f"{file}: has {size} bytes, more than the {MOST_JSON_BYTES} of a file of JSON")


def parse_manifest(content: bytes, file: str, *, required: Sequence[str] = REQUIRED) -> Manifest:
    """The manifest that `file`, here or elsewhere, has as its content.

    Raises:
        BundleError: it is none, a field is not what it has to be, a name leads out of the folder, or a `required` file
            is not listed.
    """
    try:
        raw = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(raw, dict) or raw.get("format_version") != FORMAT_VERSION:
        raise BundleError(f"{file}: not a manifest of format version {FORMAT_VERSION}")
    for later in ("transform", "adapter"):  # fields that earlier bundles do not have
        raw.setdefault(later, None)
    known = {f.name for f in fields(Manifest)}
    if missing := known - raw.keys():
        raise BundleError(f"{file}: lacks {', '.join(sorted(missing))}")
    if unknown := raw.keys() - known:
        raise BundleError(f"{file}: unknown {', '.join(map(repr, sorted(unknown)))}")
    try:
        manifests.check(raw)
        manifest = Manifest(**{**raw, "golden": [Golden(**entry) for entry in raw["golden"]]})
        _check(manifest, required)
    except ValueError as error:
        raise BundleError(f"{file}: {error}") from None
    return manifest


def _check(manifest: Manifest, required: Sequence[str]) -> None:
    """That the fields, each of which is what it has to be, fit each other."""
    if len(manifest.files) > MOST_FILES:
        raise BundleError(f"lists {len(manifest.files)} files, more than the {MOST_FILES} of a bundle")
    for path in required:
        if path not in manifest.files:
            raise BundleError(f"does not list {path}")
    if (TRANSFORM in manifest.files) != (manifest.transform is not None):
        raise BundleError(f"{TRANSFORM} and the manifest's transform must be both there or both absent")
    if MANIFEST in manifest.files:
        raise BundleError(f"lists {MANIFEST}, which can't hold its own hash")
    if not manifest.golden or any(len(golden.vector) != manifest.dim for golden in manifest.golden):
        raise BundleError(f"golden vectors must be there and have {manifest.dim} numbers")


def files_of(folder: Path) -> set[str]:
    """Relative paths of every file but the manifest.

    Raises:
        BundleError: one is a link, which may lead out of the folder.
    """
    found = set()
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise BundleError(f"{path}: a link; a bundle holds plain files only")
        if path.is_file():
            found.add(path.relative_to(folder).as_posix())
    return found - {MANIFEST}
