"""Extraction of a low-rank adapter from a fully tuned encoder by singular value decomposition (SVD).

For each linear layer, the tuned weight minus the base's weight is truncated to its largest singular values. This is the
best approximation of the given rank (Eckart and Young, 1936). The tuned biases are stored exactly. Differences of
embeddings and layer norms are discarded.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from models.bundle import adapter, bundle, card, origin, quantization, sources
from models.bundle.adapter import PREFIX, AdapterError
from models.bundle.bundle import CARD, CONFIG, TOKENIZER, TRANSFORM, Manifest
from models.bundle.disk import naming, replacing_folder
from models.encoder import transform as transforms
from models.encoder.encoder import Encoder, keep_layers, linear_layers
from models.export.export import GOLDEN_SENTENCES, encoder_facts, unit_vectors, write_int8_limit

JUDGES = "isosphere.judges"
"""Group of entry points through which `training` provides its evaluation, because `models` does not import
`training`."""
STSB_DEV = "stsb_dev_spearman"
DTYPES: Mapping[str, type[Any]] = {"float16": np.float16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}
"""Storage types of the factors, by their names in torch."""


class Extracted(NamedTuple):
    """An extracted adapter, and how similar its vectors are to those of the tuned encoder."""

    folder: Path
    bytes: int
    mean_cosine: float
    least_cosine: float
    """Minimum cosine between vectors of the tuned encoder and of the base with the adapter (see `cosines_between`)."""
    stsb_dev: tuple[float, float] | None
    """STS-B dev (Spearman × 100) of the tuned encoder, and of the base with the adapter. None without STS-B's data."""


def extract(
    source: str,
    folder: Path,
    *,
    base: str,
    rank: int,
    dtype: str = "float16",
    biases: bool = True,
    layers: Sequence[int] | None = None,
    about: str | None = None,
    data: Path | None = None,
) -> Extracted:
    """Write an adapter for `base` that approximates the tuned encoder `source`. The folder is written atomically.

    `dtype` is one of `DTYPES`. At the same file size, float8 allows twice the rank of float16, but each number has a
    rounding error of up to 6 %. `layers` are the base's layers from which the tuned encoder was made, counted from 0.
    None means all layers. `data` is the folder of SentEval's data. With `data`, the tuned encoder and the base with the
    adapter are scored on STS-B dev. `about` is a sentence for the model card.

    Raises:
        AdapterError: the encoders differ in architecture or vocabulary, the rank is out of range, `folder` contains
            files that do not belong to an adapter, or `training` is not installed, which `data` requires.
        Refused: `layers` are not ascending numbers of the base's layers, layers of this model family can't be removed,
            or `data` lacks a file.
        SourceError, BundleError: an encoder can't be read.
    """
    tuned, start = Encoder.load(source), Encoder.load(base)
    if layers is not None:
        keep_layers(start.backbone, layers)
    _check_alike(tuned, start, source, base)
    scores = _stsb_dev(data) if data else None
    modules = _linear_modules(start, rank)
    factors, scaling = _rounded(_factors(tuned, start, modules, rank), dtype)
    tensors = factors | (_biases(tuned, modules) if biases else {})
    config = adapter.lora_config(
        sources.hub_id(base) or base,
        rank=rank,
        target_modules=modules,
        alpha=rank * scaling,
        bias="all" if biases else "none",
        layer_replication=adapter.replication(layers),
    )
    adapter.refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with naming(folder), replacing_folder(folder) as draft:
        adapter.write(draft, config=config, tensors=tensors)
        merged = Encoder.load(draft, pooling=tuned.pooling, max_length=tuned.max_length, prompts=tuned.prompts)
        if tuned.transform is not None:
            merged.attach(tuned.transform)
            transforms.save(tuned.transform, draft)
        describe(
            draft, merged, base=base, name=folder.name, said=sources.manifest_of(source), source=source, about=about
        )
        mean, least = cosines_between(tuned, merged)
        judged = (scores(tuned.encode), scores(merged.encode)) if scores else None
    size = sum(file.stat().st_size for file in folder.iterdir())
    return Extracted(folder, size, mean, least, judged)


def cosines_between(one: Encoder, other: Encoder) -> tuple[float, float]:
    """Compare the two encoders' vectors of each test sentence. Return the mean and the minimum of the cosines."""
    texts = [*GOLDEN_SENTENCES, *quantization.calibration()]
    cosines = (unit_vectors(one, texts) * unit_vectors(other, texts)).sum(axis=1)
    return float(cosines.mean()), float(cosines.min())


def describe(
    folder: Path,
    merged: Encoder,
    *,
    base: str,
    name: str,
    said: Manifest | None,
    source: str,
    about: str | None = None,
    citations: Sequence[str] = (),
) -> Manifest:
    """Add the file with the limit of int8 vectors, the model card and adapter.json to the folder of an adapter.

    peft's files must already be in the folder. `merged` is the base with the adapter merged into its weights. `said` is
    the manifest of the tuned encoder `source`, if it has one. The scores in `said` are not copied, because the merged
    weights differ from the tuned weights.
    """
    write_int8_limit(merged, folder)
    opened = adapter.load(folder)
    identity = opened.identity(base, sources.weights_sha256(sources.base_of(opened)))
    run = without_paths({**(said.run or {} if said else {}), **({"about": about} if about else {})})
    facts: dict[str, Any] = {
        **encoder_facts(merged),
        "name": name,
        "objective": said.objective if said else None,
        "backbone": base,
        "run": run or None,
        "scores": None,
        "adapter": {**identity, "rank": opened.config["r"]},
    }
    facts["fingerprint"] = _fingerprint(merged, facts)
    manifest = adapter.write_manifest(folder, **facts)
    written = card.text(manifest, origin.read(source, sources.resolve(source)), citations)
    (folder / CARD).write_text(written, encoding="utf-8")
    return adapter.write_manifest(folder, **facts)


def record(folder: Path, scores: Mapping[str, float]) -> Manifest:
    """Add `scores` of the merged encoder to the manifest and model card of the adapter in `folder`.

    The keys of `scores` are score names as in manifests.

    Raises:
        AdapterError: the folder has no adapter with a manifest.
    """
    said = adapter.load(folder).manifest
    if said is None:
        raise AdapterError(f"{folder}: has no {adapter.MANIFEST}, so scores can't be recorded")
    rounded = {name: round(score, 2) for name, score in scores.items()}
    facts = {field.name: getattr(said, field.name) for field in fields(said) if field.name != "files"}
    facts["scores"] = {**(said.scores or {}), **rounded}
    known = origin.read(str(folder), folder)
    with replacing_folder(folder) as draft:
        shutil.copytree(folder, draft, dirs_exist_ok=True)
        (draft / CARD).write_text(card.text(Manifest(**facts, files=said.files), known), encoding="utf-8")
        return adapter.write_manifest(draft, **facts)


def without_paths(value: Any) -> Any:
    """Return the record of a run without long values, and with file names instead of absolute paths."""
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items() if key not in card.BULKY}
    if isinstance(value, list | tuple):
        return [without_paths(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _check_alike(tuned: Encoder, start: Encoder, source: str, base: str) -> None:
    depths = [each.backbone.config.num_hidden_layers for each in (tuned, start)]
    if depths[0] != depths[1]:
        raise AdapterError(
            f"{source}: has {depths[0]} layers, and its base {base} has {depths[1]}: "
            "name the layers of the base that were kept, as in --layers 0,2,5"
        )
    theirs, ours = tuned.backbone.state_dict(), start.backbone.state_dict()
    for name in sorted({*theirs, *ours} - {name for name in {*theirs, *ours} if name.startswith("pooler.")}):
        shapes = [tuple(weights[name].shape) if name in weights else "absent" for weights in (theirs, ours)]
        if shapes[0] != shapes[1]:
            raise AdapterError(f"{source}: {name} is {shapes[0]}, but {shapes[1]} in its base {base}")
    if tuned.hub_tokenizer.get_vocab() != start.hub_tokenizer.get_vocab():
        raise AdapterError(f"{source}: its tokenizer has another vocabulary than that of its base {base}")


def _linear_modules(start: Encoder, rank: int) -> list[str]:
    modules = linear_layers(start.backbone)
    largest = min((min(module.weight.shape) for module in modules.values()), default=0)
    if not 1 <= rank <= largest:
        raise AdapterError(f"rank: {rank} does not fit: the narrowest layer of the base allows 1 to {largest}")
    return list(modules)


def _factors(tuned: Encoder, start: Encoder, modules: Sequence[str], rank: int) -> dict[str, NDArray[np.float64]]:
    """Approximate the change of each module's weights (out, in) by B (out, rank) times A (rank, in).

    The change is the weights of `tuned` minus the weights of `start`.
    """
    factors: dict[str, NDArray[np.float64]] = {}
    for module in modules:
        after, before = (each.backbone.get_parameter(f"{module}.weight").detach().double() for each in (tuned, start))
        left, values, right = torch.linalg.svd(after - before, full_matrices=False)
        # The square root is a factor of both matrices, so that their numbers have similar size.
        root = values[:rank].sqrt()
        factors[f"{PREFIX}{module}.lora_A.weight"] = (root[:, None] * right[:rank]).numpy()
        factors[f"{PREFIX}{module}.lora_B.weight"] = (left[:, :rank] * root).numpy()
    return factors


def _rounded(factors: Mapping[str, NDArray[np.float64]], dtype: str) -> tuple[dict[str, NDArray[Any]], float]:
    """Round A and B of all modules to one of `DTYPES`. Return the rounded factors, and a scale for the product B A.

    float8 has only four bits of exponent. For float8, all numbers are therefore first multiplied by the same power of
    two, the largest that keeps every number within the range of float8. The scale undoes this multiplication.
    """
    if dtype == "float16":
        return {name: factor.astype(np.float16) for name, factor in factors.items()}, 1
    largest = max(float(np.abs(factor).max()) for factor in factors.values())
    up = 2.0 ** math.floor(math.log2(torch.finfo(getattr(torch, dtype)).max / largest)) if largest else 1.0
    return {name: (up * factor).astype(DTYPES[dtype]) for name, factor in factors.items()}, up**-2


def _biases(tuned: Encoder, modules: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return every bias, in float32, by the name that peft gives to it.

    In float16, the rounding error would exceed the changes from tuning.
    """
    wrapped = {f"{module}.bias": f"{module}.base_layer.bias" for module in modules}
    return {
        PREFIX + wrapped.get(name, name): bias.detach().numpy()
        for name, bias in tuned.backbone.named_parameters()
        if name.endswith(".bias") and not name.startswith("pooler.")
    }


def _fingerprint(merged: Encoder, facts: Mapping[str, Any]) -> str:
    """Return the fingerprint that a bundle of the merged encoder will have."""
    with TemporaryDirectory() as scratch, naming(saved := Path(scratch)):
        merged.save(saved)
        files = {
            path: bundle.sha256(saved / path) for path in (CONFIG, TOKENIZER, TRANSFORM) if (saved / path).is_file()
        }
        return bundle.fingerprint(saved, Manifest(**{**facts, "files": files, "fingerprint": ""}))


def _stsb_dev(data: Path) -> Callable[[Callable[[Sequence[str]], NDArray[np.float32]]], float]:
    """Return a function that scores an encoder on STS-B dev.

    The function's argument is the encoder's own function from texts to vectors.

    Raises:
        AdapterError: `training` is not installed.
        DataError: the data are missing.
    """
    found = entry_points(group=JUDGES, name=STSB_DEV)
    if not found:
        raise AdapterError("--data: evaluation on STS-B dev needs the package `training`: install it with `make setup`")
    (entry,) = found
    selection = entry.load()(data)
    return lambda encode: float(selection.scores(encode)[STSB_DEV])
