"""Configuration of a pre-training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.config import ConfigError, Configuration, check_folders, resolved


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Configuration):
    """Everything that affects a pre-training run's result. `from_json(to_json())` returns an equal configuration."""

    corpus: tuple[str, ...] = ()
    """Files as in `training.config.RunConfig`."""
    text_column: str | None = None
    """Column as in `training.config.RunConfig`."""
    backbone: str | None = None
    """BERT to continue from, with its tokenizer and shape. None means random weights."""
    tokenizer: str = "minilm"
    """Name or folder of the encoder whose WordPiece vocabulary is used."""
    out: str = "artifacts/mlm"
    """Folder of the model."""
    run: str = "runs/mlm"
    """Folder of the run's record."""
    layers: int = 6
    width: int = 384
    """Width of hidden states. Inner layers are four times as wide, or as wide as the backbone's."""
    heads: int = 12
    max_length: int = 128
    """Length of a sequence in tokens. Without a backbone, it is also the model's maximum length."""
    dropout: float = 0.1
    """Dropout of hidden states and attention weights. It also replaces a backbone's own dropout."""
    share: float = 0.15
    """Share of the tokens that are masked."""
    batch_size: int = 256
    """Number of sequences in a step, over all devices."""
    chunk_size: int | None = None
    """Maximum number of sequences that a device computes at once. None means the device's whole share of a batch."""
    steps: int = 20_000
    warmup: float = 0.05
    """Share of steps in which the learning rate rises to `learning_rate`. Afterwards, the rate falls to zero."""
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    """Weight decay of matrices. Norms and biases have none."""
    clip_norm: float = 1.0
    eval_every: int = 500
    """Steps between evaluations, and between checkpoints."""
    seed: int = 42
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products. `auto` is bf16 if the hardware supports it."""
    device: str = "auto"

    def __post_init__(self) -> None:
        self.check()
        check_folders(self)
        if not 0 < self.share < 1:
            raise ConfigError(f"share: {self.share} is not greater than 0 and less than 1")
        self._check_backbone()
        if self.width % self.heads:
            raise ConfigError(f"heads: {self.heads} heads do not divide a width of {self.width}")
        if Path(self.run).resolve().is_relative_to(Path(self.out).resolve()):
            raise ConfigError(f"run: {self.run} is inside {self.out} (out), which must contain only the model")

    def _check_backbone(self) -> None:
        if self.backbone is None:
            return
        values = self.flat()
        start = resolved("backbone", values)
        if resolved("tokenizer", values) != start:
            raise ConfigError(
                f"tokenizer: {self.tokenizer}: leave it out, because the backbone {self.backbone} has its own tokenizer"
            )
        if resolved("out", values) == start:
            raise ConfigError(f"out: {self.out} is the backbone, which would be replaced")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step. It rises linearly during warm-up, then falls linearly to zero.

        Steps are counted from 0.
        """
        rising = round(self.warmup * self.steps)
        share = (step + 1) / rising if step < rising else (self.steps - step) / (self.steps - rising)
        return self.learning_rate * share
