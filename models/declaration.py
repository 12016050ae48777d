"""What the folder of an encoder says of it beside its weights: pooling, length, prompts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models import adapter
from models.bundle import MANIFEST
from models.pooling import POOLINGS
from models.sources import SourceError, base_of, opened_adapter

log = logging.getLogger(__name__)


def declared(folder: Path) -> dict[str, Any]:
    """Pooling, length and prompts as our manifest says, or else as sentence-transformers wrote them.

    Raises:
        SourceError: a file can't be read, or says what no encoder here is; names it.
    """
    for name in (MANIFEST, adapter.MANIFEST):
        if manifest := _json(file := folder / name):
            return _bundled(file, manifest)
    if opened := opened_adapter(folder):
        return declared(base_of(opened))
    _check_modules(folder / "modules.json")
    found: dict[str, Any] = {}
    if modes := _json(file := folder / "1_Pooling" / "config.json"):
        found["pooling"] = _only_mode(file, modes)
    read = _json(file := folder / "sentence_bert_config.json")
    if (length := read.get("max_seq_length")) is not None:
        if type(length) is not int or length < 1:
            raise SourceError(f"{file}: max_seq_length must be a whole number above 0, not {length!r}")
        found["max_length"] = length
    found["lower"] = read.get("do_lower_case")
    found["prompts"] = _prompts(folder / "config_sentence_transformers.json")
    found["include_prompt"] = modes.get("include_prompt", True)
    return found


def _bundled(file: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What `models.bundle` checks in full; here a folder may be somebody else's."""
    match manifest:
        case {"pooling": str(pooling), "max_length": int(length), "prompts": dict(prompts)} if (
            length > 0 and pooling in POOLINGS
        ):
            transform = manifest.get("transform")
            return {"pooling": pooling, "max_length": length, "prompts": prompts, "transform": transform}
    raise SourceError(f"{file}: not a bundle's manifest: pooling, max_length and prompts are not as a bundle says them")


def _prompts(file: Path) -> dict[str, str] | None:
    said = _json(file)
    prompts, default = said.get("prompts"), said.get("default_prompt_name")
    if default is not None:
        log.warning("%s: default_prompt_name %r is left out; serve with --default-prompt-name for it", file, default)
    if prompts is None or (isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())):
        return prompts
    raise SourceError(f"{file}: prompts must be an object of names and texts")


def _check_modules(file: Path) -> None:
    """Raises `SourceError` if sentence-transformers would change the pooled vectors by more than their length."""
    modules = _read(file) if file.is_file() else []
    for module in modules if isinstance(modules, list) else [modules]:
        match module:
            case {"type": str(kind), "path": str(path)}:
                kind = kind.rpartition(".")[2]  # its package is another in each generation of sentence-transformers
            case _:
                raise SourceError(f"{file}: not a list of modules, each with a type and a path")
        if kind not in ("Transformer", "Pooling", "Normalize", "Dropout"):  # which does nothing but in training
            raise SourceError(f"{file}: the module {kind} ({path or '.'}) is not known")


def _only_mode(file: Path, said: Mapping[str, Any]) -> str:
    """The pooling; of several modes at once sentence-transformers concatenates the vectors."""
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    of_old = [names.get(key, key) for key, on in said.items() if key.startswith("pooling_mode_") and on]
    modes = [said["pooling_mode"]] if "pooling_mode" in said else of_old
    if modes not in (["cls"], ["mean"]):
        raise SourceError(f"{file}: only the poolings cls and mean are known, one alone, not {modes}")
    return str(modes[0])


def _json(file: Path) -> dict[str, Any]:
    said = _read(file) if file.is_file() else {}
    if not isinstance(said, dict):
        raise SourceError(f"{file}: not an object of JSON")
    return said


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{file}: not JSON in UTF-8: {error}") from error
