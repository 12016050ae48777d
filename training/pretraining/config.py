"""A pre-training run, described whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from training.config import LEAST_LENGTH, ConfigError, check_folders, check_seed, checked, place
from training.fields import check_finite, kinds, settings

POSITIVE = (
    *("layers", "width", "heads", "max_length", "batch_size", "chunk_size", "steps", "eval_every"),
    *("learning_rate", "clip_norm"),
)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Everything that decides what a run computes; `from_json(to_json())` is the same run."""

    corpus: tuple[str, ...] = ()
    """As of `training.config.RunConfig`."""
    text_column: str | None = None
    """The same."""
    backbone: str | None = None
    """A BERT to go on with, whose tokenizer and shape are the run's; none means random weights."""
    tokenizer: str = "minilm"
    """Whose vocabulary: any name or folder that a backbone may have; WordPiece."""
    out: str = "artifacts/mlm"
    """Folder of the model."""
    run: str = "runs/mlm"
    """Folder of the run's record."""
    layers: int = 6
    width: int = 384
    """Of hidden states; four times that inside a layer, or what a backbone has there."""
    heads: int = 12
    max_length: int = 128
    """Tokens of a sequence; and, without a backbone, of the longest text that the model will ever read."""
    dropout: float = 0.1
    """Of hidden states and attention weights, whatever a backbone had."""
    share: float = 0.15
    """Of the tokens that are hidden."""
    batch_size: int = 256
    """Sequences of a step, on however many devices."""
    chunk_size: int | None = None
    """Sequences that go through the model at once on a device; none means all that the device has of a batch."""
    steps: int = 20_000
    warmup: float = 0.05
    """Share of the steps in which the learning rate rises to `learning_rate`, then falls to zero."""
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    """Of matrices; norms and biases have none."""
    clip_norm: float = 1.0
    eval_every: int = 500
    """Steps between evaluations, and between checkpoints."""
    seed: int = 42
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of matrix products; `auto` is bf16 where the hardware has it."""
    device: str = "auto"

    def __post_init__(self) -> None:
        try:
            check_finite(self)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}: {value} is not above 0")
        check_folders(self)
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay: {self.weight_decay} is below 0")
        for name in ("dropout", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a share of at least 0 and below 1")
        if not 0 < self.share < 1:
            raise ConfigError(f"share: {self.share} is not a share above 0 and below 1")
        check_seed(self.seed)
        self._check_backbone()
        if self.width % self.heads:
            raise ConfigError(f"heads: a width of {self.width} is not to be divided among {self.heads}")
        if self.max_length < LEAST_LENGTH:
            raise ConfigError(f"max_length: {self.max_length} leaves no room between the special tokens")
        if Path(self.run).resolve().is_relative_to(Path(self.out).resolve()):
            raise ConfigError(f"run: {self.run} would lie in out, {self.out}, which holds the model and nothing else")

    def _check_backbone(self) -> None:
        if self.backbone is None:
            return
        values = asdict(self)
        start = place("backbone", values)
        if place("tokenizer", values) != start:
            raise ConfigError(f"tokenizer: {self.tokenizer}, where the backbone, {self.backbone}, has its own")
        if place("out", values) == start:
            raise ConfigError(f"out: {self.out} is the backbone, which would be replaced")

    def rate(self, step: int) -> float:
        """The learning rate of a step, the first one being 0: linear warm-up, then linear decay to zero."""
        rising = round(self.warmup * self.steps)
        share = (step + 1) / rising if step < rising else (self.steps - step) / (self.steps - rising)
        return self.learning_rate * share

    def to_json(self) -> str:
        """The run as a JSON object, a line a field."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The run that `to_json` wrote.

        Raises:
            ConfigError: a key is unknown or missing, or a value has the wrong type.
        """
        try:
            return cls(**checked({"text_column": None} | json.loads(text), kinds(cls)))
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"not the configuration of a run: {error}") from error

    def override(self, changes: Mapping[str, Any]) -> Self:
        """This run with fields at other values.

        Raises:
            ConfigError: a value is out of range.
        """
        return replace(self, **changes)

    def parse(self, texts: Sequence[str]) -> dict[str, Any]:
        """The changes that `key=value` settings ask for, each value of its field's type.

        Raises:
            ConfigError: a key is unknown, or a value is not of the key's type.
        """
        try:
            return settings(texts, kinds(type(self)))
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def differences(self, other: PretrainConfig) -> list[str]:
        """Where the two differ, as `field (this, other)`; a path is the place it leads to, however it is written."""
        mine, theirs = asdict(self), asdict(other)
        return [f"{name} ({mine[name]}, {theirs[name]})" for name in mine if place(name, mine) != place(name, theirs)]
