"""A low-rank adapter (LoRA): the difference between a tuned encoder and its base, as a folder in the `peft` format.

* adapter_config.json, from peft: rank, scaling, and names of the changed modules;
* adapter_model.safetensors, from peft: two low-rank factors for each changed module, A (rank, in) and B (out, rank);
* adapter.json, from Isosphere: the base and its SHA-256, pooling, training, scores, golden vectors;
* README.md: the model card.

For a weight W of the base, the merged weight is W + scaling · B A. Reading and merging need only NumPy, so a server
needs no torch.

An adapter may keep only some layers of its base. Peft's field `layer_replication` lists these layers, and module names
count the kept layers from 0. Adapters that were made with `peft` alone have no adapter.json. For such an adapter, the
pooling of the base is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from models.bundle import bundle
from models.bundle.bundle import CARD, INT8, TRANSFORM, Manifest
from models.bundle.disk import LFS, lfs_pointer
from models.errors import Refused, first_line

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MANIFEST = "adapter.json"
REQUIRED = (CONFIG, WEIGHTS, INT8)
"""Files that adapter.json must list."""
MERGE_VERSION = 1
"""Version of the merge arithmetic, which is part of the fingerprint. Increase it when `Adapter.updates` changes."""
PREFIX = "base_model.model."
"""Prefix of module names in peft's weight files."""

Weights = Mapping[str, NDArray[Any]]
"""Weights by their names in the base's `model.safetensors`."""

MERGED = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "bias")
"""Fields of peft's configuration that affect the merged weights."""
LAYERS = "layer_replication"
"""Peft's field that lists the layers of the base that the encoder keeps, as ranges [first, end)."""
MOST_LAYERS = 1000
"""Maximum layer number in the ranges of `LAYERS`."""
DTYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
"""NumPy's types by their names in safetensors. The safetensors library can't read all of them into NumPy arrays."""
WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
}
"""Fields of peft's configuration that do not affect the merged weights."""
PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the base's weights unchanged. For example, `pissa` changes them."""


class AdapterError(Refused):
    """A folder does not contain an adapter, or its adapter can't be merged into the base.

    The message names the file and the problem.
    """


class _Update(NamedTuple):
    """Low-rank difference between the tuned value and the original value of one weight."""

    weight: str
    a: NDArray[Any]
    b: NDArray[Any]
    scaling: float
    transposed: bool
    """True if the weight is an embedding (entries, width), because peft stores the transposed factors of embeddings."""


@dataclass(frozen=True)
class Adapter:
    """An adapter whose files are complete and consistent.

    The methods `identity` and `updates` check whether the adapter fits a base.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Weights
    manifest: Manifest | None

    @property
    def base(self) -> str:
        """Name of the base encoder, from adapter.json if it exists, else from peft's configuration.

        Raises:
            AdapterError: there is no adapter.json, and peft's configuration names no base.
        """
        named = self.manifest.backbone if self.manifest else self.config.get("base_model_name_or_path")
        if not isinstance(named, str) or not named:
            raise AdapterError(f"{self.folder / CONFIG}: base_model_name_or_path: must name the base encoder")
        return named

    @property
    def layers(self) -> Sequence[int] | None:
        """Layers of the base that the merged encoder keeps, counted from 0. None means all layers."""
        ranges = self.config.get(LAYERS)
        return None if ranges is None else [layer for first, end in ranges for layer in range(first, end)]

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the adapter's tensors, scaling and layers.

        Apart from these, the merged weights depend only on the weights of the base.
        """
        layers = {} if self.layers is None else {LAYERS: self.config[LAYERS]}
        decides = {
            "tensors": bundle.sha256(self.folder / WEIGHTS),
            "config": {name: self.config[name] for name in MERGED if name in self.config} | layers,
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def identity(self, base: str, base_sha256: str) -> dict[str, Any]:
        """Return the dictionary that identifies the merged weights, for the field `Manifest.adapter`.

        The dictionary contains the name and the SHA-256 of the base, the SHA-256 of the adapter, the version of the
        merge arithmetic and, unless all layers are kept, the kept layers. The dictionary is the same on every machine.

        Raises:
            AdapterError: according to adapter.json, the adapter was trained on a base with different weights.
        """
        made_for = ((self.manifest and self.manifest.adapter) or {}).get("base_sha256", base_sha256)
        if made_for != base_sha256:
            raise AdapterError(
                f"{self.folder}: was made for a {base} whose weights have the SHA-256 {made_for[:12]}…, "
                f"not {base_sha256[:12]}…"
            )
        layers = {} if self.layers is None else {"layers": [*self.layers]}
        identity = {"base": base, "base_sha256": base_sha256, "sha256": self.sha256, "merge_version": MERGE_VERSION}
        return identity | layers

    def updates(self, base: Weights) -> dict[str, NDArray[np.float32]]:
        """Return the merged value of each weight and bias that the adapter changes, by its name in `base`.

        If the merged encoder keeps only some of the layers, `base` must contain only these layers, renumbered from 0.
        Weights are merged in float64 and rounded to float32.

        Raises:
            AdapterError: `base` lacks a weight that the adapter changes, or has this weight in another shape.
        """
        changed: dict[str, NDArray[np.float32]] = {}
        for update in _low_rank(self):
            delta = update.b.astype(np.float64) @ update.a.astype(np.float64)
            delta = delta.T if update.transposed else delta
            before = self._fitting(base, update.weight, delta.shape)
            changed[update.weight] = np.asarray(before + update.scaling * delta, dtype=np.float32, order="C")
        for name, bias in _biases(self):
            self._fitting(base, name, bias.shape)
            changed[name] = np.asarray(bias, dtype=np.float32)
        return changed

    def _fitting(self, base: Weights, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if name not in base:
            raise AdapterError(f"{self.folder / WEIGHTS}: changes {name}, which the base does not have")
        if base[name].shape != shape:
            raise AdapterError(
                f"{self.folder / WEIGHTS}: {name} is {_shape(shape)}, but the base has {_shape(base[name].shape)}"
            )
        return base[name]


def is_adapter(folder: Path) -> bool:
    """Return whether the folder contains an adapter instead of a whole encoder."""
    return (folder / CONFIG).is_file()


def refuse_foreign(folder: Path) -> None:
    """Raise an error if `folder` contains anything but the files of one adapter.

    A new adapter replaces the whole folder, so other files in the folder would be deleted. A missing or empty folder is
    accepted.

    Raises:
        AdapterError: `folder` is a file or a link, is not an adapter, or contains another file.
        BundleError: a path in `folder` is a symbolic link.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if folder.is_symlink() or not is_adapter(folder):
        raise AdapterError(f"{folder}: exists and is not an adapter, so it is not replaced")
    if foreign := sorted(bundle.files_of(folder) - {CONFIG, WEIGHTS, MANIFEST, TRANSFORM, INT8, CARD}):
        raise AdapterError(f"{folder / foreign[0]}: not a file of the adapter, so the folder is not replaced")


def load(folder: Path) -> Adapter:
    """Read an adapter and check everything that can be checked without the base.

    Raises:
        AdapterError: a file is missing or damaged, or the adapter can't be merged into any base, for example because it
            uses a feature of peft that is not supported.
        BundleError: adapter.json is not a valid manifest or does not list a required file, or a JSON file is too
            large.
    """
    if (weights := folder / WEIGHTS).is_file() and lfs_pointer(weights):
        raise AdapterError(f"{weights}: {LFS}")
    adapter = Adapter(folder, _config(folder / CONFIG), _tensors(folder / WEIGHTS), _manifest(folder))
    if not list(_low_rank(adapter)) + list(_biases(adapter)):
        raise AdapterError(f"{folder / WEIGHTS}: contains no tensor")
    return adapter


def write(folder: Path, *, config: Mapping[str, Any], tensors: Weights) -> Adapter:
    """Write peft's two files to `folder`, and return the adapter that `folder` then contains.

    Raises:
        AdapterError: the adapter can't be merged into any base, for example because it has no tensor, has numbers that
            are not finite, or uses a feature of peft that is not supported.
    """
    # `save_file` writes the memory of an array as it is, so arrays must be contiguous.
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return load(folder)


def write_manifest(folder: Path, **facts: Any) -> Manifest:
    """Write adapter.json with the hashes of the other files in the folder.

    `facts` are the other fields of the manifest. Among them is `golden`, whose vectors are rounded to six decimals.
    """
    paths = [path for path in (CONFIG, WEIGHTS, TRANSFORM, INT8, CARD) if (folder / path).is_file()]
    files = {path: bundle.sha256(folder / path) for path in paths}
    manifest = Manifest(**{**facts, "files": files, "golden": bundle.rounded(facts["golden"])})
    (folder / MANIFEST).write_text(bundle.dumped(manifest), encoding="utf-8")
    return manifest


def replication(layers: Sequence[int] | None) -> list[tuple[int, int]] | None:
    """Return the value of peft's field `layer_replication` for an encoder that keeps only `layers` of its base.

    The value has one range [layer, layer + 1) for each layer. It is None if `layers` is None, which means all layers.
    """
    return None if layers is None else [(layer, layer + 1) for layer in layers]


def lora_config(
    base: str,
    *,
    rank: int,
    target_modules: list[str],
    alpha: float | None = None,
    bias: str = "none",
    layer_replication: list[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Return the content of peft's adapter_config.json.

    All modules have the same `rank`, and the same scaling `alpha` / `rank`. Without `alpha`, the scaling is 1.
    """
    return {
        **({LAYERS: layer_replication} if layer_replication else {}),
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank if alpha is None else alpha,
        "lora_dropout": 0.0,
        "bias": bias,
        "target_modules": target_modules,
        "inference_mode": True,
    }


def _manifest(folder: Path) -> Manifest | None:
    file = folder / MANIFEST
    if not file.is_file():
        return None
    bundle.check_size(file)
    manifest = bundle.parse_manifest(file.read_bytes(), str(file), required=REQUIRED)
    if manifest.adapter is None:
        raise AdapterError(f"{file}: the field 'adapter' is null; it must name the base and its SHA-256")
    for path, expected in manifest.files.items():
        if not (folder / path).is_file():
            raise AdapterError(f"{folder / path}: missing, but {MANIFEST} lists it")
        if bundle.sha256(folder / path) != expected:
            raise AdapterError(f"{folder / path}: changed or truncated (its SHA-256 differs from {MANIFEST})")
    return manifest


def _config(file: Path) -> dict[str, Any]:
    bundle.check_size(file)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{file}: missing") from None
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{file}: not JSON in UTF-8: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{file}: not an object of JSON")
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{file}: peft_type: {config.get('peft_type')!r} is not supported; only LORA is")
    _check_rank(file, config)
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise AdapterError(f"{file}: bias: {config['bias']!r} must be none, all or lora_only")
    if config.get("init_lora_weights", True) not in PLAIN_STARTS:
        raise AdapterError(
            f"{file}: init_lora_weights: {config['init_lora_weights']!r} changes the base's weights, "
            "which is not supported: convert it with peft's save_pretrained(path_initial_model_for_weight_conversion=…)"
        )
    _check_layers(file, config.get(LAYERS))
    for name in config.keys() - {*MERGED, *WITHOUT_EFFECT, LAYERS, "init_lora_weights"}:
        if config[name] not in (None, False, "", [], {}):
            raise AdapterError(f"{file}: {name}: {config[name]!r} is a feature of peft that is not supported")
    return config


def _check_rank(file: Path, config: Mapping[str, Any]) -> None:
    numbers = {"r": config.get("r"), "lora_alpha": config.get("lora_alpha")}
    for pattern in ("rank_pattern", "alpha_pattern"):
        given = config.get(pattern) or {}
        if not isinstance(given, dict):
            raise AdapterError(f"{file}: {pattern}: not an object of modules and numbers")
        numbers |= {f"{pattern}: {module}": number for module, number in given.items()}
        for module in given:
            try:
                re.compile(module)
            except re.error as error:
                raise AdapterError(f"{file}: {pattern}: {module!r} is not a regular expression: {error}") from error
    for name, number in numbers.items():
        whole = name == "r" or name.startswith("rank_pattern")
        kinds = (int,) if whole else (int, float)
        if isinstance(number, bool) or not isinstance(number, kinds) or not 0 < number < float("inf"):
            raise AdapterError(f"{file}: {name}: must be a {'whole ' if whole else ''}number above 0, not {number!r}")


def _check_layers(file: Path, ranges: Any) -> None:
    """Check the value of `layer_replication`, which must be ascending ranges without overlap, or None.

    Raises:
        AdapterError: `ranges` is any other value; the message names `file`.
    """
    match ranges:
        case None:
            return
        case [*pairs] if pairs and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            bounds = [bound for pair in pairs for bound in pair]
            whole = all(type(bound) is int and 0 <= bound <= MOST_LAYERS for bound in bounds)
            if whole and bounds == sorted(bounds) and all(first < end for first, end in pairs):
                return
    raise AdapterError(
        f"{file}: {LAYERS}: must be ascending ranges [first, end) of layers without overlap, not {ranges!r}"
    )


def _tensors(file: Path) -> Weights:
    try:
        stored = dict(deserialize(file.read_bytes()))  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        raise AdapterError(f"{file}: missing") from None
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{file}: truncated, or not safetensors: {first_line(error)}") from error
    tensors: dict[str, NDArray[Any]] = {}
    for name, each in stored.items():
        if each["dtype"] not in DTYPES:
            raise AdapterError(f"{file}: {name}: has the type {each['dtype']}, expected one of {', '.join(DTYPES)}")
        tensors[name] = np.frombuffer(each["data"], DTYPES[each["dtype"]]).reshape(each["shape"])
    for name, tensor in tensors.items():
        if not np.isfinite(tensor.astype(np.float64)).all():
            raise AdapterError(f"{file}: {name}: has numbers that are not finite")
    return tensors


def _low_rank(adapter: Adapter) -> Iterator[_Update]:
    """Yield the low-rank update of each module, in the order of the modules' names.

    Raises:
        AdapterError: a tensor is neither a factor nor a bias, a factor is missing, or a factor has the wrong rank.
    """
    file, tensors = adapter.folder / WEIGHTS, adapter.tensors
    for key in sorted(tensors):
        found = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_(?:(A|B)\.weight|embedding_(A|B))", key)
        if found is None:
            if not _bias_name(key) or adapter.config.get("bias", "none") == "none":
                raise AdapterError(f"{file}: {key}: is not part of a LoRA adapter that can be merged")
            continue
        embedding = found[3] is not None
        pair = [f"{PREFIX}{found[1]}.lora_" + (f"embedding_{side}" if embedding else f"{side}.weight") for side in "AB"]
        if missing := [name for name in pair if name not in tensors]:
            raise AdapterError(f"{file}: {missing[0]}: missing, but the other factor exists")
        if key == pair[0]:
            a, b = tensors[pair[0]], tensors[pair[1]]
            yield _Update(f"{found[1]}.weight", a, b, _scaling(adapter, found[1], a, b), embedding)


def _scaling(adapter: Adapter, module: str, a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the scaling of the product B A in one module.

    Raises:
        AdapterError: the matrices `a` and `b` do not have the configured rank.
    """
    config = adapter.config
    rank = _of_module(config.get("rank_pattern") or {}, module, config["r"])
    alpha = _of_module(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise AdapterError(
            f"{adapter.folder / WEIGHTS}: {module}: A is {_shape(a.shape)} and B {_shape(b.shape)}, "
            f"which does not match the rank {rank} in {CONFIG}"
        )
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _of_module(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """Return a module's value from `patterns`. If no pattern matches, return `otherwise`.

    `patterns` maps regular expressions to values. As in peft, a regular expression must match the module's whole name,
    or the part of the name after one of its dots.
    """
    return next((value for end, value in patterns.items() if re.match(rf"(.*\.)?({end})$", module)), otherwise)


def _biases(adapter: Adapter) -> Iterator[tuple[str, NDArray[Any]]]:
    for key, tensor in sorted(adapter.tensors.items()):
        if name := _bias_name(key):
            yield name, tensor


def _bias_name(key: str) -> str | None:
    """Return the name of the base's bias that a tensor replaces, or None if the tensor is no bias.

    `key` is the tensor's name in peft's file. Peft stores whole biases, not differences.
    """
    found = re.fullmatch(rf"{re.escape(PREFIX)}(.+?)(?:\.base_layer)?\.bias", key)
    return f"{found[1]}.bias" if found and ".lora_" not in key else None


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"
