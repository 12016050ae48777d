"""The bundle: a folder that contains an encoder. Training writes bundles, and serving reads them.

`manifest.json` lists every file in the folder with its SHA-256. A folder with a missing, changed or additional file is
refused, so the files that a server uses are exactly the exported files.
"""

from __future__ import annotations

import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from models.bundle import quantization
from models.bundle.disk import LFS, lfs_pointer
from models.bundle.prompts import nonempty
from models.bundle.tokenizer import Tokenizer
from models.errors import Refused

FORMAT_VERSION = 1
ENCODER = "encoder"
"""Kind of a bundle whose model maps a text to a vector. Manifests of encoders omit the kind."""
CROSS_ENCODER = "cross-encoder"
"""Kind of a bundle whose model maps a pair of texts to a score."""
MOST_JSON_BYTES = 64 << 20
"""Maximum size in bytes of a JSON file, because the file is read into memory."""
MOST_FILES = 1000
"""Maximum files in a manifest. A bundle has about ten."""
MANIFEST = "manifest.json"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
ONNX = "onnx/model.onnx"
FP32 = "fp32"
"""Precision of the graph in `ONNX`. Graphs of other precisions are `onnx/model_<precision>.onnx`."""
FP16_ONNX = "onnx/model_fp16.onnx"
TOKENIZER = "tokenizer.json"
TRANSFORM = "transform.safetensors"
REQUIRED = (TOKENIZER, CONFIG, WEIGHTS, ONNX)
CARD = "README.md"
"""The model card, which the hub shows. The manifest lists its hash, but the card does not affect the fingerprint."""
REPORT = "report.json"
"""The report of the promotion, in a promoted bundle. It affects neither vectors nor the fingerprint."""
REPORT_PAGE = "report.html"
"""The report of the promotion as an HTML page. The file is optional."""
ENGINES = "engines.json"
"""Measured speed and accuracy of runtimes. The file is optional and does not affect the fingerprint."""
INT8 = "int8.json"
"""The range of int8 output, calibrated at export.

It does not affect the fingerprint, because it only affects quantised vectors.
"""
GOLDEN_COSINE = 0.999
"""Minimum cosine of a runtime's vectors, both to the golden vectors and to the vectors of the float32 reference.

A combination of runtime and precision with a lower cosine may not serve the bundle.
"""

VOLATILE_CONFIG = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""Keys of config.json that don't affect the encoder's results."""
MERGED_FROM = ("base_sha256", "sha256", "merge_version")
"""Keys of the manifest's `adapter` that identify merged weights."""


class BundleError(Refused):
    """A folder is not a complete, unchanged bundle. The message names the missing or changed file."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """A sentence and its float32 unit vector, computed at export.

    Servers compare their own vectors with golden vectors.
    """

    text: str
    vector: list[float]
    text_pair: str | None = None
    """The second text of a pair, for a cross-encoder. `vector` is then the score of the pair."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of `manifest.json`. `files` maps the relative path of each file to the file's SHA-256."""

    format_version: int = FORMAT_VERSION
    name: str
    objective: str | None
    backbone: str
    dim: int
    max_length: int
    pooling: str
    prompts: dict[str, str] = field(default_factory=dict)
    transform: dict[str, Any] | None = None
    """Kind and sizes of the transform that is applied after pooling and before normalisation.

    Its weights are in `transform.safetensors`.
    """
    files: dict[str, str]
    fingerprint: str
    run: dict[str, Any] | None = None
    scores: dict[str, float] | None = None
    golden: list[Golden]
    adapter: dict[str, Any] | None = None
    """SHA-256 of base and adapter, for merged weights; see `models.bundle.adapter`. None for other weights."""
    kind: str = ENCODER


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files have been verified."""

    folder: Path
    manifest: Manifest

    @property
    def onnx(self) -> Path:
        """Path of the float32 ONNX graph.

        The graph of an encoder maps `input_ids` and `attention_mask` to `sentence_embedding`, `norm` and, in newer
        bundles, `token_embeddings`.
        """
        return self.folder / ONNX

    @property
    def graphs(self) -> dict[str, Path]:
        """Paths of the ONNX graphs by precision, beginning with the float32 graph."""
        reduced = {
            path.removeprefix("onnx/model_").removesuffix(".onnx"): self.folder / path
            for path in sorted(self.manifest.files)
            if path.startswith("onnx/model_") and path.endswith(".onnx")
        }
        return {FP32: self.onnx, **reduced}

    @property
    def int8_limit(self) -> float | None:
        """Largest absolute component that int8 output can represent. None for older bundles, which have no `int8.json`.

        Raises:
            BundleError: `int8.json` contains no number above 0 and at most 1.
        """
        if INT8 not in self.manifest.files:
            return None
        try:
            return quantization.read(self.folder / INT8)
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{self.folder / INT8}: {error}") from error

    @property
    def matryoshka(self) -> Sequence[int]:
        """Numbers of dimensions to which vectors can be truncated, according to config.json.

        The sequence is empty without Matryoshka training.

        Raises:
            BundleError: config.json is not a JSON object, or `matryoshka_dimensions` in it is not a list of integers
                from 1 to the number of dimensions.
        """
        file, config = self.folder / CONFIG, _config(self.folder)
        widths, dim = config.get("matryoshka_dimensions"), self.manifest.dim
        if not widths or self.manifest.kind == CROSS_ENCODER:
            return range(1, dim + 1) if config.get("is_matryoshka") else ()
        if isinstance(widths, list) and all(isinstance(one, int) and 0 < one <= dim for one in widths):
            return widths
        raise BundleError(f"{file}: matryoshka_dimensions must be a list of widths from 1 to {dim}")

    @property
    def label(self) -> str:
        """Name of a cross-encoder's output label."""
        names = _config(self.folder).get("id2label")
        return str(names.get("0")) if isinstance(names, dict) and names.get("0") else "LABEL_0"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the bundle. The first access reads it from the file.

        Raises:
            BundleError: the file is not a tokenizer, has a regular expression that may take exponential time, or has
                tokens without an embedding in the encoder; or the maximum length leaves no room for a text.
        """
        try:
            made = Tokenizer(self.tokenizer_file, max_length=self.manifest.max_length)
            rows = _config(self.folder).get("vocab_size")
            made.check_rows(rows if isinstance(rows, int) else made.vocab_size)
        except ValueError as error:
            raise BundleError(f"{self.folder}: {error}") from error
        return made

    @property
    def tokenizer_file(self) -> Path:
        return self.folder / TOKENIZER


def load(folder: Path) -> Bundle:
    """Load the bundle in `folder`, and verify every hash.

    If `folder` is a link, it is resolved once, so that later reads use the same bundle even if the link changes.

    Raises:
        BundleError: the manifest is missing or invalid; a file is missing, altered, not listed or a link; a JSON file
            is too large; or the fingerprint does not match the files.
    """
    if folder.is_symlink():
        folder = folder.parent / folder.readlink()
    manifest = read_manifest(folder / MANIFEST)
    for listed_file in manifest.files:
        if listed_file.endswith(".json"):
            check_size(folder / listed_file)
    listed, present = set(manifest.files), files_of(folder)
    if missing := sorted(listed - present):
        raise BundleError(f"{folder / missing[0]}: missing, but the manifest lists it")
    if foreign := sorted(present - listed):
        raise BundleError(
            f"{folder / foreign[0]}: not in the manifest; remove it, because a bundle may contain no other files"
        )
    with ThreadPoolExecutor() as threads:  # the weights and the graph, which are equally large, at the same time
        hashes = list(threads.map(lambda path: sha256(folder / path), manifest.files))
    for (path, expected), actual in zip(manifest.files.items(), hashes, strict=True):
        if actual != expected:
            altered = LFS if lfs_pointer(folder / path) else "changed (its SHA-256 differs from the manifest)"
            raise BundleError(f"{folder / path}: {altered}")
    found = fingerprint(folder, manifest)
    of_old = fingerprint(folder, replace(manifest, prompts={}))  # Fingerprints of older bundles do not include prompts.
    if manifest.fingerprint not in (found, of_old):
        raise BundleError(f"{folder / MANIFEST}: the fingerprint does not match the files")
    return Bundle(folder, replace(manifest, fingerprint=found))


def write_manifest(folder: Path, **facts: Any) -> Manifest:
    """Write the manifest of `folder`, with the hash of every file.

    `facts` are the manifest's fields that can't be computed from the files.
    """
    files = {path: sha256(folder / path) for path in sorted(files_of(folder))}
    unsigned = Manifest(files=files, fingerprint="", **facts)
    manifest = replace(unsigned, fingerprint=fingerprint(folder, unsigned))
    (folder / MANIFEST).write_text(dumped(manifest), encoding="utf-8")
    return manifest


def rounded(golden: Sequence[Golden]) -> list[Golden]:
    """Round golden vectors to six decimals, for manifests that are kept in Git."""
    return [replace(one, vector=[round(number, 6) for number in one.vector]) for one in golden]


def dumped(manifest: Manifest) -> str:
    """Format a manifest as JSON with one line for each golden vector.

    With usual indentation, each number of a vector would have its own line.
    """
    fields = asdict(manifest)
    if manifest.kind == ENCODER:  # Manifests of version 1.0 have no kind, so the kind of an encoder is omitted.
        del fields["kind"]
    rows = [{key: one for key, one in row.items() if one is not None} for row in fields.pop("golden")]
    golden = ",\n  ".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    text = json.dumps(fields, ensure_ascii=False, indent=1, allow_nan=False)
    return text.removesuffix("\n}") + f',\n "golden": [\n  {golden}\n ]\n}}\n'


def fingerprint(folder: Path, manifest: Manifest) -> str:
    """Return a hash of everything that determines the encoder's vectors.

    The hash covers weights, architecture, tokenizer, pooling, maximum length, transform, prompts and kind. An empty
    prompt counts as no prompt.

    The content of ONNX files and the bundle's name are excluded, so that corpora need not be re-embedded after a second
    export of the same encoder. Merged weights are represented by the hashes of base and adapter, because the last bits
    of merged weights may differ between machines.

    Raises:
        BundleError: `config.json` is not a JSON object.
    """
    merged = manifest.adapter
    decides = {
        "weights": {name: merged[name] for name in MERGED_FROM} if merged else manifest.files[WEIGHTS],
        "config": {key: value for key, value in _config(folder).items() if key not in VOLATILE_CONFIG},
        "tokenizer": manifest.files[TOKENIZER],
        "pooling": manifest.pooling,
        "max_length": manifest.max_length,
    }
    if manifest.transform is not None:
        decides["transform"] = {**manifest.transform, "weights": manifest.files[TRANSFORM]}
    if prompts := nonempty(manifest.prompts):
        decides["prompts"] = prompts
    if manifest.kind != ENCODER:
        decides["kind"] = manifest.kind
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not JSON ({error})") from error
    if not isinstance(config, dict):
        raise BundleError(f"{file}: not an object")
    return config


def files_of(folder: Path) -> set[str]:
    """Return the relative path of every file in the folder except the manifest.

    Raises:
        BundleError: a path is a symbolic link, which may point outside the folder.
    """
    found = set()
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise BundleError(f"{path}: is a link; a bundle may contain only regular files")
        if path.is_file():
            found.add(path.relative_to(folder).as_posix())
    return found - {MANIFEST}


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_manifest(file: Path) -> Manifest:
    """Read a manifest, without reading other files of the bundle.

    Raises:
        BundleError: the file is missing, can't be read or is too large, or `parse_manifest` refuses its content.
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
    """Raise an error if a JSON file is too large to read into memory. A missing file is accepted.

    Raises:
        BundleError: the file is too large.
    """
    if file.is_file() and (size := file.stat().st_size) > MOST_JSON_BYTES:
        raise BundleError(f"{file}: has {size} bytes, more than the maximum of {MOST_JSON_BYTES} for a JSON file")


def parse_manifest(content: bytes, file: str, *, required: Sequence[str] = REQUIRED) -> Manifest:
    """Parse the content of a manifest. `file` is the manifest's name in error messages.

    Raises:
        BundleError: the content is not a manifest, a field is invalid, a path leads out of the folder, or a `required`
            file is not listed.
    """
    try:
        raw = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(raw, dict) or raw.get("format_version") != FORMAT_VERSION:
        raise BundleError(f"{file}: not a manifest of format version {FORMAT_VERSION}")
    for later in ("transform", "adapter"):  # Manifests of earlier versions lack these fields.
        raw.setdefault(later, None)
    raw.setdefault("kind", ENCODER)
    known = {f.name for f in fields(Manifest)}
    if missing := known - raw.keys():
        raise BundleError(f"{file}: lacks {', '.join(sorted(missing))}")
    if unknown := raw.keys() - known:
        raise BundleError(f"{file}: unknown fields {', '.join(map(repr, sorted(unknown)))}")
    try:
        _check_fields(raw)
        manifest = Manifest(**{**raw, "golden": [Golden(**entry) for entry in raw["golden"]]})
        _check_consistency(manifest, required)
    except ValueError as error:
        raise BundleError(f"{file}: {error}") from None
    return manifest


def _check_consistency(manifest: Manifest, required: Sequence[str]) -> None:
    """Check that the fields of a manifest agree with each other, and that all `required` files are listed.

    Each field has already been checked on its own.

    Raises:
        BundleError: two fields contradict each other, a `required` file is not listed, the manifest lists itself or too
            many files, or there are no golden vectors.
    """
    if len(manifest.files) > MOST_FILES:
        raise BundleError(f"lists {len(manifest.files)} files, more than the maximum of {MOST_FILES}")
    for path in required:
        if path not in manifest.files:
            raise BundleError(f"does not list {path}")
    if (TRANSFORM in manifest.files) != (manifest.transform is not None):
        raise BundleError(f"{TRANSFORM} and the manifest's transform must both be present or both be absent")
    if MANIFEST in manifest.files:
        raise BundleError(f"lists {MANIFEST}, which can't contain its own hash")
    if any((golden.text_pair is None) != (manifest.kind == ENCODER) for golden in manifest.golden):
        raise BundleError("the golden vectors of a cross-encoder have a text_pair, those of an encoder have none")
    if not manifest.golden or any(len(golden.vector) != manifest.dim for golden in manifest.golden):
        raise BundleError(f"golden vectors must be present and have {manifest.dim} numbers")


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Check the types of all fields of a parsed manifest, and the names of the bundle and of the files.

    Raises:
        ValueError: a field has a wrong type, or a name is not valid; the message has the field or the name.
    """
    for name, (fits, kind) in FIELD_KINDS.items():
        if not fits(fields[name]):
            raise ValueError(f"{name} must be {kind}")
    if _commands_a_terminal(fields["name"]):
        raise ValueError(f"name must be one line of plain text, not {fields['name']!r}")
    for path in fields["files"]:
        if {"", ".", ".."}.intersection(path.split("/")) or "\\" in path or _commands_a_terminal(path):
            raise ValueError(f"{path!r} must be a plain name of a file inside the folder")
        if above := fields["files"].keys() & set(map(str, PurePosixPath(path).parents)):
            raise ValueError(f"{min(above)!r} can't be a file and the folder of {path!r}")


def _commands_a_terminal(name: str) -> bool:
    """Return whether a name has control characters, which a terminal obeys, or surrogates, which can't be printed."""
    return any(unicodedata.category(character) in {"Cc", "Cs"} for character in name)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _number(value: object) -> bool:
    """Return whether the value is a finite number. Python's JSON parser also accepts NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _object_of(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: _object(value) and all(map(fits, value.values()))


def _transform(value: object) -> bool:
    return _object(value) and _text(value.get("kind"))


def _adapter(value: object) -> bool:
    return (
        _object(value)
        and all(_text(value.get(name)) for name in ("base", "base_sha256", "sha256"))
        and _count(value.get("merge_version"))
    )


def _golden_vectors(value: object) -> bool:
    return isinstance(value, list) and all(map(_golden_vector, value))


def _golden_vector(value: object) -> bool:
    if not _object(value) or value.keys() - {"text_pair"} != {"text", "vector"}:
        return False
    texts, vector = (value["text"], value.get("text_pair", "")), value["vector"]
    return all(map(_text, texts)) and isinstance(vector, list) and all(map(_number, vector))


def _or_null(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


FIELD_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "kind": (lambda value: value in (ENCODER, CROSS_ENCODER), f"{ENCODER} or {CROSS_ENCODER}"),
    "name": (_text, "text"),
    "objective": (_or_null(_text), "text or null"),
    "backbone": (_text, "text"),
    "dim": (_count, "a positive integer"),
    "max_length": (_count, "a positive integer"),
    "pooling": (_text, "text"),
    "prompts": (_object_of(_text), "an object of names and texts"),
    "transform": (_or_null(_transform), "an object whose kind is a text, or null"),
    "files": (_object_of(_text), "an object of names and hashes"),
    "fingerprint": (_text, "text"),
    "run": (_or_null(_object), "an object or null"),
    "scores": (_or_null(_object_of(_number)), "an object of names and finite numbers, or null"),
    "golden": (_golden_vectors, "a list of objects, each with a text and its vector"),
    "adapter": (
        _or_null(_adapter),
        "an object whose base, base_sha256 and sha256 are texts and whose merge_version is a number, or null",
    ),
}
"""Checks of a manifest's fields. Each field has a function that accepts its value, and a description for messages."""
