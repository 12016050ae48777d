"""One run of a study: what is computed, and the place it has among the others."""

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
    """A study that can't be run or reported, in one line that names the file and the key."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run, not yet given folders: `config.out` and `config.run` are empty."""

    arm: str
    """Of the study; empty where it has none."""
    axes: Mapping[str, Any]
    """The values that this run has of what is varied."""
    config: RunConfig
    fraction: float = 1.0
    """The share of the corpus that is trained on."""
    untrained: bool = False
    """Whether the backbone is judged as it is."""
    sts: bool = True
    """Whether it is judged by the STS tasks, and its best weights are chosen by STS-B dev; else by self-retrieval."""
    transfer: bool = False
    """Whether it is judged by the transfer tasks."""
    retrieval: tuple[str, ...] = ()
    """The collections that it is judged by, as `training.evaluation.beir.part` has their names."""
    neighbours: int = 0
    """Of how many sentences of the corpus the nearest in a batch are measured."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """What stands in the id for the paths of `config`, by field: see `training.study.contents`."""

    @cached_property
    def id(self) -> str:
        """Of all that decides what is computed, whatever arm and preset the values are from and wherever files lie."""
        described = json.loads(replace(self.config, preset="").to_json()) | self.inputs
        content = f"{json.dumps(described, indent=2)}\n{self.fraction}{self.untrained}"
        content += "transfer" if self.transfer else ""  # nothing more where it isn't asked for: that keeps known ids
        content += "".join(f"retrieval {name}" for name in self.retrieval) + ("" if self.sts else "no sts")
        content += f"neighbours {self.neighbours}" if self.neighbours else ""
        return hashlib.blake2b(content.encode("utf-8"), digest_size=6).hexdigest()

    @property
    def label(self) -> str:
        """The arm and the values of its axes, the seed left out: runs of one label are averaged."""
        return label_of(self.arm, self.axes)

    @property
    def title(self) -> str:
        """The label and the seed."""
        return self.label if self.untrained else f"{self.label}, seed {self.config.seed}"

    def to_json(self) -> str:
        """As a JSON object, for `from_json`."""
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
        """What `to_json` wrote.

        Raises:
            StudyError: it is not that.
        """
        try:
            values = json.loads(text)
            config = RunConfig.from_json(json.dumps(values["config"]))
            return cls(**{**values, "retrieval": tuple(values["retrieval"]), "config": config})
        except (ValueError, TypeError, KeyError) as error:
            raise StudyError(f"not a run of a study: {error}") from error


def label_of(arm: str, axes: Mapping[str, Any]) -> str:
    """Text speaks for itself, a number needs its name."""
    parts = [arm] if arm else []
    parts += [
        value if isinstance(value, str) else f"{name} {_plain(value)}" for name, value in axes.items() if name != SEED
    ]
    return ", ".join(parts) or "all"


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value)  # nothing rounded: it tells runs apart
