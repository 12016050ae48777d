"""Training facts and scores from the manifest of an encoder, for `/info` and the log."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from models.bundle.bundle import Manifest

PARITY = "onnx_parity"
"""Key, in the manifest's scores, of the numerical error of the exported ONNX graph. It is not a benchmark score."""
SUMMARIES = ("mean", "nDCG@10")
"""Endings of the names of summary scores. A summary score is, for example, the mean of a benchmark."""
DEFAULT_CORPUS = "python-docs"
"""Name of the training corpus if the training's configuration names no file."""


def training(manifest: Manifest) -> dict[str, Any] | None:
    """Return the training facts in the manifest, or None if it has no training record.

    The record is untrusted input, so a fact of a wrong type is treated as missing. Paths are reduced to file names.
    """
    run = manifest.run
    if run is None:
        return None
    ingredients = [one for one in map(_object, _list(run.get("ingredients"))) if one.get("share")]
    corpora = [corpus for one in (run, *(_object(one.get("run")) for one in ingredients)) if (corpus := _corpus(one))]
    averaged = f"The average of {len(ingredients)} encoders" if len(ingredients) > 1 else None
    about = _line(_fact(run, "about")) or _line(_object(_fact(run, "recipe")).get("about"))
    teacher = _fact(run, "teacher")
    return {
        "about": about or averaged,
        "objective": manifest.objective or _line(_fact(run, "objective")),
        "backbone": _name(manifest.backbone),
        "seed": _count(_fact(run, "seed")),
        "corpus": corpora[0] if corpora and all(corpus == corpora[0] for corpus in corpora) else None,
        "teacher": _name(teacher if isinstance(teacher, str) else _object(teacher).get("name")),
    }


def summary(manifest: Manifest) -> str:
    """Return the encoder's name, its training and its scores as one line."""
    known, backbone = training(manifest) or {}, _name(manifest.backbone)
    objective = known.get("objective") or manifest.objective
    about = (known.get("about") or "").removesuffix(".")
    said = [about or (f"{backbone} by {objective}" if objective else f"the untouched {backbone}")]
    said += [f"taught by {teacher}"] if (teacher := known.get("teacher")) else []
    said += [f"on {corpus['name']}"] if (corpus := known.get("corpus")) and corpus["name"] else []
    said += [f"seed {seed}"] if (seed := known.get("seed")) is not None else []
    scores = {name: score for name, score in (manifest.scores or {}).items() if name != PARITY}
    sums = {name: score for name, score in scores.items() if name.endswith(SUMMARIES)} or scores
    told = [f"{name} {score:.4g}" for name, score in sums.items()]
    return f"{manifest.name}: " + "; ".join(filter(None, [", ".join(said), ", ".join(told)]))


def _fact(run: Mapping[str, Any], name: str) -> Any:
    """Return a fact of a training run, from the run's record or from the configuration in the record."""
    return run[name] if run.get(name) is not None else _object(run.get("config")).get(name)


def _corpus(run: Mapping[str, Any]) -> dict[str, Any] | None:
    found, files = _fact(run, "corpus"), _object(run.get("config")).get("corpus")
    if found is None:
        return None
    facts = _object(found)
    names = [PurePath(file).name for file in _list(files) if isinstance(file, str)]
    own = facts.get("name")
    named = " ".join(PurePath(part).name for part in own.split()) if isinstance(own, str) else " ".join(names)
    return {
        "name": _line(named) or (DEFAULT_CORPUS if files == [] else None),
        "sentences": _count(facts.get("sentences")),
        "digest": _line(facts.get("digest")),
    }


def _name(value: Any) -> str | None:
    """Return the name of a model. A path is reduced to its last part, but a Hugging Face id `owner/name` is kept."""
    name = _line(value)
    if name is None or (name.count("/") <= 1 and name[0] not in "/.~"):
        return name
    return PurePath(name).name


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    """Return `value` if it is an integer between -2**53 and 2**53, both excluded, else None.

    JSON parsers of all languages can read such integers.
    """
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _line(value: Any) -> str | None:
    """Return a text as one printable line without control characters.

    Return None if nothing printable is left, or if the value is not a text.
    """
    if not isinstance(value, str):
        return None
    return " ".join("".join(one if one.isprintable() else " " for one in value).split()) or None
