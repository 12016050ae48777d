"""Settings of an encoder in a folder, such as pooling, maximum length and prompts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.bundle import adapter, sources
from models.bundle.bundle import CROSS_ENCODER, MANIFEST
from models.bundle.sources import MODULES, Module, SourceError, backbone_folder, base_of, opened_adapter, read_object
from models.encoder.pooling import JOINED, parts

log = logging.getLogger(__name__)

FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Names of poolings by the boolean flags of older versions of sentence-transformers.

If several flags are set, the vectors are concatenated in the order of this table.
"""
SETTINGS = [
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
"""File names under which versions of sentence-transformers store the settings of a Transformer module.

The first existing file is read.
"""
NOT_SUPPORTED = ("processing_kwargs", "query_length", "document_length", "query_expansion")
"""Settings of a Transformer module that change vectors and are refused."""
UNLIMITED = 1_000_000
"""Smallest `model_max_length` that counts as no maximum length.

transformers stores a huge number if a tokenizer has no maximum length.
"""
AFTER_POOLING = ("Dense", "Normalize", "Dropout")
"""Modules that may come after the pooling."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read an encoder's settings, by names such as `pooling`, `max_length` and `prompts`.

    The settings are those of Isosphere's manifest, including `transform`. Without a manifest, the settings are those of
    sentence-transformers' files, including `after_pooling`, the list of modules after the pooling. An adapter without a
    manifest has the settings of its base. A setting that no file gives is missing or None.

    Raises:
        SourceError: a file can't be read, or describes an unsupported encoder; the message names the file.
        AdapterError, BundleError: the folder contains a damaged or unsupported adapter without a manifest.
    """
    for name in (MANIFEST, adapter.MANIFEST):
        if manifest := read_object(file := folder / name):
            return _bundled(file, manifest)
    if opened := opened_adapter(folder):
        return read_config(base_of(opened))
    pooling, after_pooling = _modules(folder)
    found: dict[str, Any] = {"after_pooling": after_pooling}
    if pooling:
        found["pooling"] = _pooling(file := pooling / "config.json")
        found["prompts_left_out"] = read_object(file).get("include_prompt") is False
    backbone = backbone_folder(folder)
    read, file = next(
        ((said, one) for name in SETTINGS if (said := read_object(one := backbone / name))), ({}, backbone)
    )
    if (length := read.get("max_seq_length")) is not None:
        if type(length) is not int or length < 1:
            raise SourceError(f"{file}: max_seq_length must be a whole number above 0, not {length!r}")
        found["max_length"] = length
    elif (folder / MODULES).is_file():  # Since version 6, sentence-transformers writes the length to this file.
        length = read_object(backbone / "tokenizer_config.json").get("model_max_length")
        if type(length) is int and 0 < length < UNLIMITED:
            found["max_length"] = length
    if (task := read.get("transformer_task", "feature-extraction")) != "feature-extraction":
        raise SourceError(f"{file}: transformer_task {task!r} is not supported")
    if other := next(filter(read.get, NOT_SUPPORTED), None):
        raise SourceError(f"{file}: {other} {read[other]!r} is not supported")
    found["lower"] = read.get("do_lower_case")
    said = read_object(file := folder / "config_sentence_transformers.json")
    found["prompts"] = _prompts(file, said)
    if (cut := said.get("truncate_dim")) is not None and (type(cut) is not int or cut < 1):
        raise SourceError(f"{file}: truncate_dim must be a whole number above 0, not {cut!r}")
    found["truncate"] = cut
    return found


def _bundled(file: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings from the content of a manifest. Error messages name `file`, the path of the manifest.

    `models.bundle.bundle.load` is not used, because it refuses a folder that is not a complete bundle.

    Raises:
        SourceError: the manifest is that of a cross-encoder, or a setting is missing or invalid.
    """
    if manifest.get("kind") == CROSS_ENCODER:
        raise SourceError(f"{file}: a cross-encoder, which computes no vectors of texts")
    match manifest:
        case {"pooling": str(pooling), "max_length": int(length), "prompts": dict(prompts)} if length > 0 and _known(
            pooling
        ):
            transform = manifest.get("transform")
            return {"pooling": pooling, "max_length": length, "prompts": prompts, "transform": transform}
    raise SourceError(f"{file}: not a bundle's manifest: pooling, max_length or prompts are missing or invalid")


def _known(pooling: str) -> bool:
    try:
        return bool(parts(pooling))
    except ValueError:
        return False


def _prompts(file: Path, said: Mapping[str, Any]) -> dict[str, str] | None:
    prompts, default = said.get("prompts"), said.get("default_prompt_name")
    if default is not None:
        log.warning("%s: default_prompt_name %r is ignored; to use it, serve with --default-prompt-name", file, default)
    if prompts is None or (isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())):
        return prompts
    raise SourceError(f"{file}: prompts must be an object of names and texts")


def _modules(folder: Path) -> tuple[Path | None, Sequence[Module]]:
    """Return the folder of the pooling module, and the modules after the pooling.

    If `folder` lists no modules and has no folder `1_Pooling`, return None and an empty list.

    Raises:
        SourceError: the modules are not a Transformer and a Pooling, followed by supported modules.
    """
    listed = [module for module in sources.modules(folder) if module.kind != "Dropout"]
    if not listed:
        return next(filter(Path.is_dir, [folder / "1_Pooling"]), None), []
    for module, known in zip(listed, (["Transformer"], ["Pooling"], *[AFTER_POOLING] * len(listed)), strict=False):
        if module.kind not in known:
            place = module.folder.relative_to(folder)
            raise SourceError(
                f"{folder / MODULES}: the module {module.kind} ({place}) is not supported here; expected "
                f"{' or '.join(known)}"
            )
    if len(listed) < 2:
        raise SourceError(f"{folder / MODULES}: lists no Pooling module")
    return listed[1].folder, listed[2:]


def _pooling(file: Path) -> str:
    """Return the name of the pooling that is described in the config.json of a Pooling module.

    If the file describes several poolings, their names are joined by `+`, because their vectors are concatenated.

    Raises:
        SourceError: the file is missing or not a JSON object, or a pooling is not supported.
    """
    said = read_object(file, required=True)
    by_flags = [mode for flag, mode in FLAGS.items() if said.get(flag)] or "mean"
    modes = said.get("pooling_mode", by_flags)
    names = [modes] if isinstance(modes, str) else modes
    unknown = [key for key, on in said.items() if key.startswith("pooling_mode_") and on and key not in FLAGS]
    if unknown or not isinstance(names, list) or not names or not all(name in FLAGS.values() for name in names):
        raise SourceError(f"{file}: pooling must be of {', '.join(FLAGS.values())}, not {unknown or modes}")
    return JOINED.join(names)
