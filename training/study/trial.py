"""A single run of a study: its configuration and its labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from training.config import ConfigError, RunConfig

SEED = "seed"


class StudyError(ConfigError):
    """A study can't be run or reported. The message is one line and names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run before it has folders: `config.out` and `config.run` are empty."""

    arm: str
    """Arm of the study, or empty."""
    axes: Mapping[str, Any]
    """Values of the axes in this run."""
    config: RunConfig
    fraction: float = 1.0
    """Share of the corpus used in training."""
    untrained: bool = False
    """True if the backbone is evaluated without training."""
    sts: bool = True
    """If true, evaluate on the STS tasks and choose weights by STS-B dev. If false, choose weights by
    self-retrieval."""
    transfer: bool = False
    """True for evaluation on the transfer tasks."""
    retrieval: tuple[str, ...] = ()
    """Collections for evaluation, named as in `training.evaluation.beir.part`."""
    neighbours: int = 0
    """Number of corpus sentences whose nearest in-batch neighbours are measured."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digests that replace the paths of `config` in the id, by field: see `training.study.contents`."""

    @cached_property
    def id(self) -> str:
        """Return a hash of everything that affects the result. Arm, preset name and paths don't affect it."""
        described = json.loads(replace(self.config, preset="").to_json()) | self.inputs
        content = f"{json.dumps(described, indent=2)}\n{self.fraction}{self.untrained}"
        # Nothing is appended by default, so that existing ids stay valid.
        content += "transfer" if self.transfer else ""
        content += "".join(f"retrieval {name}" for name in self.retrieval) + ("" if self.sts else "no sts")
        content += f"neighbours {self.neighbours}" if self.neighbours else ""
        return hashlib.blake2b(content.encode("utf-8"), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """Return the arm and its axes without the seed. Runs with the same label are averaged."""
        return label_of(self.arm, self.axes)

    @property
    def title(self) -> str:
        """Return the label and the seed."""
        return self.label if self.untrained else f"{self.label}, seed {self.config.seed}"

    def to_json(self) -> str:
        """Return the JSON text that `from_json` reads."""
        values = {
            "arm": self.arm,
            "axes": dict(self.axes),
            "fraction": self.fraction,
            "untrained": self.untrained,
            "sts": self.sts,
            "transfer": self.transfer,
            "retrieval": self.retrieval,
            "neighbours": self.neighbours,
            "inputs": dict(self.inputs),
            "config": json.loads(self.config.to_json()),
        }
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text that `to_json` wrote.

        Raises:
            StudyError: the text is not a run of a study.
        """
        try:
            values = json.loads(text)
            config = RunConfig.from_json(json.dumps(values["config"]))
            return cls(**{**values, "retrieval": tuple(values["retrieval"]), "config": config})
        except (ValueError, TypeError, KeyError) as error:
            raise StudyError(f"not a run of a study: {error}") from error


def label_of(arm: str, axes: Mapping[str, Any]) -> str:
    """Join arm and axes. Numbers follow the name of their axis. Text values appear without it."""
    parts = [arm] if arm else []
    parts += [
        value if isinstance(value, str) else f"{name} {_plain(value)}" for name, value in axes.items() if name != SEED
    ]
    return ", ".join(parts) or "all"


def _plain(value: Any) -> str:
    # Nothing is rounded, so that labels tell runs apart.
    return repr(value) if isinstance(value, float) else json.dumps(value)
