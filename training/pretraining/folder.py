"""The output folder of a run in transformers' format, with a record of the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import ModelCardData

from models.bundle.disk import write_whole
from models.bundle.draft import replacing, restore
from models.bundle.origin import Origin
from models.encoder.encoder import save_tokenizer
from training import record
from training.corpus.corpus import Census
from training.machine.environment import environment
from training.pretraining.config import PretrainConfig
from training.pretraining.model import MaskedLM
from training.publish import counts
from training.record import RunError

RECORD = "pretraining.json"


def check(folder: Path) -> None:
    """Check that a model can be written to the folder.

    Another pre-trained model may be replaced.

    Raises:
        RunError: it can't.
    """
    if folder.is_symlink():
        raise RunError(f"--out {folder}: a link to {folder.readlink()}; name the folder itself")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _refuse_foreign(folder)
    if folder.name in ("", ".."):
        raise RunError(f"--out {folder}: is replaced as a whole: call it by its name, from the folder above")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        TemporaryDirectory(dir=folder.parent).cleanup()
    except OSError as error:
        raise RunError(f"--out {folder}: {error.strerror}") from error


def publish(config: PretrainConfig, model: MaskedLM, census: Census) -> None:
    """Write model, tokenizer, record and card to `config.out` atomically.

    Raises:
        RunError: see `check`.
    """
    curve, out = record.evaluations(Path(config.run)), Path(config.out)
    restore(out)
    check(out)  # The check is repeated, because a run takes long and the folder's content is deleted.
    with replacing(out) as draft:
        model.bert.save_pretrained(draft, max_shard_size="100GB")
        save_tokenizer(model.tokenizer, draft)
        write_whole(draft / "README.md", _page(config, model.encoder.origin, census, curve))
        made = {
            "config": asdict(config),
            "environment": environment(),
            "corpus": counts(census),
            "curve": curve,
            "files": sorted(_files(draft)),
        }
        write_whole(draft / RECORD, json.dumps(made, indent=2) + "\n")


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace files that no run has written, because replacing deletes them."""
    if not (folder / RECORD).is_file():
        raise RunError(f"{folder} exists and is not a pre-trained model: choose another --out")
    if foreign := sorted(_files(folder) - _written(folder / RECORD)):
        raise RunError(
            f"{folder / foreign[0]}: not part of the model there, which is therefore left alone: choose another --out"
        )


def _written(file: Path) -> set[str]:
    """Return the files that a model's record lists."""
    try:
        return {RECORD, *json.loads(file.read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(
            f"{file}: does not list the files of the model, which is therefore left alone: choose another --out"
        ) from None


def _files(folder: Path) -> set[str]:
    """Return the relative paths of all files and links."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def _page(config: PretrainConfig, origin: Origin, census: Census, curve: Sequence[Mapping[str, float]]) -> str:
    corpus = " ".join(Path(file).name for file in config.corpus) or "the documentation inside CPython"
    return f"""---
{_metadata(origin).to_yaml()}
---

# {Path(config.out).resolve().name}

A BERT of {config.layers} layers, {config.width} wide, with {config.heads} heads, pre-trained from {_start(config)}
by Isosphere as a masked language model: whole words, {config.share:.0%} of the tokens, {config.steps} steps of
{config.batch_size} sequences of {config.max_length} tokens.
Corpus: {census.sentences} sentences of {corpus}.

{_judged(config, census, curve)}`{RECORD}` has the configuration, the machine and the curve.

It is no sentence encoder yet: `isosphere train simcse --backbone {shlex.quote(config.out)}` makes one.
{"".join(_cited(entry) for entry in origin.citations)}"""


def _metadata(origin: Origin) -> ModelCardData:
    """Return metadata for the hub, with the backbone's licence and languages."""
    return ModelCardData(
        base_model=list(origin.base_models) or None,
        language=list(origin.languages) or None,
        license=origin.licence.get("license"),
        license_name=origin.licence.get("license_name"),
        license_link=origin.licence.get("license_link"),
        library_name="transformers",
        pipeline_tag="fill-mask",
    )


def _cited(entry: str) -> str:
    return f"\n```bibtex\n{entry.strip()}\n```\n"


def _start(config: PretrainConfig) -> str:
    return f"the weights of {config.backbone}" if config.backbone else "random weights"


def _judged(config: PretrainConfig, census: Census, curve: Sequence[Mapping[str, float]]) -> str:
    """Describe the last evaluation, or nothing if the metrics are lost."""
    last = [each for each in curve if each["step"] == config.steps]
    if not last:
        return ""
    loss, accuracy = last[-1]["masked_loss"], last[-1]["masked_accuracy"]
    return (
        f"On {len(census.watched)} sentences that it was not trained on: {loss:.4f} nats a hidden token, "
        f"{accuracy:.1%} of them\nnamed right. "
    )
