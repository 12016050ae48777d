"""A run, described whole: a preset and what overrides it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from models.declaration import declared
from models.errors import Refused, none_of
from models.pooling import parts
from models.sources import path
from training.augment import Augmentation
from training.corpus.positives import POSITIVES, Positives
from training.fields import check, check_finite, kinds, settings
from training.machine.hardware import Precision
from training.objectives import OBJECTIVES
from training.objectives.base import ON_PASSAGES, AugmentationName, Recipe

FALLBACK_PRESET = "bert-base-uncased"
"""For a backbone that no preset is named after, and whose folder does not say that it pools otherwise."""

NOT_SET = ("objective", "backbone", "preset", "params")
"""What a run is built around: an option of its own, never a `--set`."""

PATHS = ("backbone", "corpus", "dev_data", "eval_data", "out", "run", "teacher", "tokenizer")
"""Each may be written in several ways; a backbone's name, as a path, is still one name."""


POSITIVE = (
    *("adapter_rank", "batch_size", "chunk_size", "epochs", "eval_every", "max_length", "max_steps"),
    *("learning_rate", "clip_norm"),
)

ADDED = {"adapter_rank": None, "dev_data": None, "dev_tasks": "stsb", "text_column": None}
"""Fields that configurations of earlier versions lack, with the value that these runs had."""


DevTasks = Literal["stsb", "stsb+sickr"]

LEAST_LENGTH = 3
"""Tokens: one, and the special ones around it."""


class ConfigError(Refused):
    """A run that can't be, in one line that names the option."""


def apart(put: Mapping[str, Any], given: Mapping[str, Any], spelt: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`put`, which `--set` sets, beside what options have `given`; `spelt`: those that are called otherwise.

    Raises:
        ConfigError: both set the same. A run's folder goes by `--out`, unless it is set.
    """
    if twice := sorted(put.keys() & given.keys() - {"run"}):
        option = (spelt or {}).get(twice[0], "--" + twice[0].replace("_", "-"))
        raise ConfigError(f"--set {twice[0]}: {option} is given, too, and sets the same")
    return dict(put)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides what a run computes; `from_json(to_json())` is the same run."""

    objective: str
    params: Any
    """The objective's own, a frozen dataclass."""
    backbone: str
    preset: str
    """Of the objective's recipe; with an ablation, `preset+ablation`."""
    batch_size: int
    learning_rate: float
    pooling: str
    epochs: int
    out: str
    """Folder of the bundle."""
    run: str
    """Folder of the run's record."""
    corpus: tuple[str, ...] = ()
    """Files, folders, patterns or `hf://` URLs: text, a sentence a line, or tables; none means Python's docs."""
    text_column: str | None = None
    """Of the tables of the corpus; none means `text`, else `sentence`."""
    teacher: str | None = None
    """Encoder of an objective that needs one, any name or folder that a backbone may have; none means that SimCSE
    trains one first."""
    eval_data: str | None = None
    """Folder in SentEval's layout; with it the best weights are chosen by STS-B dev."""
    dev_data: str | None = None
    """File of scored pairs, which choose the best weights instead."""
    dev_tasks: DevTasks = "stsb"
    """Whose development parts choose the best weights where `eval_data` does: STS-B's, or with SICK-R's the mean."""
    seed: int = 42
    max_steps: int | None = None
    """Steps instead of epochs; the learning rate reaches zero there."""
    max_length: int = 32
    """Tokens of a training sentence, special ones included; evaluation has the encoder's own limit."""
    dropout: float | None = None
    """Of hidden states and attention weights; none leaves the backbone's own."""
    augmentation: AugmentationName = "none"
    """What the last view undergoes besides dropout; or, of `POSITIVES`, which text of a passage the first view has."""
    augmentation_rate: float | None = None
    """The share it takes away; none is the published one."""
    adapter_rank: int | None = None
    """Rank of the low-rank adapter that is trained while the backbone stays frozen; none trains all weights."""
    chunk_size: int | None = None
    """Sentences encoded at once, by gradient caching: the batch may then be as large as one likes."""
    weight_decay: float = 0.0
    """Of matrices, not of norms and biases."""
    clip_norm: float = 1.0
    eval_every: int = 125
    """Steps between evaluations, and between checkpoints."""
    precision: Precision = "auto"
    """Of the encoder's matrix products while training; `auto` is bf16 where the hardware has it."""
    compile: bool = False
    """Whether torch compiles the backbone: it needs a C++ compiler and minutes; on two CPU cores it did not pay."""
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"objective {none_of(self.objective, OBJECTIVES)}")
        try:
            parts(self.pooling)
            check_finite(self)
            check_finite(self.params)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}: {value} is not above 0")
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay: {self.weight_decay} is below 0")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: {self.dropout} is not a share of at least 0 and below 1")
        if self.augmentation == "none" and self.augmentation_rate is not None:
            raise ConfigError(f"augmentation_rate: {self.augmentation_rate} of no augmentation: set that, too")
        if self.positives and self.augmentation_rate is not None:
            raise ConfigError(f"augmentation_rate: {self.augmentation} has none; leave it out")
        check_seed(self.seed)
        if self.max_length < LEAST_LENGTH:
            raise ConfigError(f"max_length: {self.max_length} leaves no room between the special tokens")
        try:
            _ = self.augmented
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def augmented(self) -> Augmentation | None:
        """What is done to the last view besides dropout."""
        if self.augmentation == "none" or self.positives is not None:
            return None
        return Augmentation(self.augmentation, self.augmentation_rate)

    @property
    def positives(self) -> Positives | None:
        """What draws the texts of a positive pair from a passage; None where all views are of the same text."""
        return POSITIVES.get(self.augmentation)

    def to_json(self) -> str:
        """The run as a JSON object, a line a field."""
        return json.dumps(self.values(), indent=2) + "\n"

    def values(self) -> dict[str, Any]:
        """Return all fields by name, without those of `ADDED`, and of the objective's, that have their earlier value.

        So a run that was described by an earlier version has the same description, and the same digest, today.
        """
        added = OBJECTIVES[self.objective].added
        return _without(asdict(self), ADDED) | {"params": _without(asdict(self.params), added)}

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The run that `to_json` wrote.

        Raises:
            ConfigError: a key is unknown or missing, or a value has the wrong type.
        """
        try:
            values = json.loads(text)
            recipe = OBJECTIVES[values["objective"]]
            params = next(iter(recipe.presets.values())).params
            values["params"] = type(params)(**checked({**recipe.added, **values["params"]}, kinds(type(params))))
            return cls(**checked(ADDED | values, kinds(cls)))
        except ConfigError:
            raise
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"not the configuration of a run: {error}") from error

    def override(self, changes: Mapping[str, Any]) -> Self:
        """This run with fields, its own or the objective's, at other values.

        Raises:
            ConfigError: a value is out of range.
        """
        own = {field.name for field in fields(self)}
        theirs = {name: value for name, value in changes.items() if name not in own}
        try:
            params = replace(self.params, **theirs)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error
        return replace(self, params=params, **{name: changes[name] for name in changes if name in own})

    def parse(self, texts: Sequence[str]) -> dict[str, Any]:
        """The changes that `key=value` settings ask for, each value of its field's type.

        Raises:
            ConfigError: a key is unknown, or a value is not of the key's type.
        """
        known = kinds(type(self)) | kinds(type(self.params))
        try:
            return settings(texts, {name: kind for name, kind in known.items() if name not in NOT_SET})
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def differences(self, other: RunConfig) -> list[str]:
        """Where the two differ, as `field (this, other)`; a path is the place it leads to, however it is written."""
        mine, theirs = (asdict(c) | asdict(c.params) for c in (self, other))
        names = [name for name in mine if name != "params" and place(name, mine) != place(name, theirs)]
        return [f"{name} ({mine[name]}, {theirs.get(name)})" for name in names]


def from_preset(objective: str, *, backbone: str = "minilm", preset: str | None = None) -> RunConfig:
    """The run of `objective` as published for a backbone: `preset`, or the one that `preset_of` finds.

    Raises:
        ConfigError: no such objective, preset or ablation.
        SourceError: the backbone is a folder that says what no encoder here is.
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {none_of(objective, OBJECTIVES)}")
    recipe = OBJECTIVES[objective]
    if preset is None:
        preset = preset_of(recipe, backbone)
    name, plus, ablation = preset.partition("+")
    if name not in recipe.presets:
        raise ConfigError(f"preset of {objective}: {none_of(name, recipe.presets)}")
    if plus and ablation not in recipe.ablations:
        raise ConfigError(f"ablation of {objective}: {none_of(ablation, recipe.ablations)}")
    values = recipe.presets[name]
    return RunConfig(
        objective=objective,
        params=replace(values.params, **recipe.ablations.get(ablation, {})),
        backbone=backbone,
        preset=preset,
        batch_size=values.batch_size,
        learning_rate=values.learning_rate,
        pooling=values.pooling,
        epochs=values.epochs,
        dropout=values.dropout,
        augmentation=values.augmentation,
        max_length=values.max_length,
        out=f"artifacts/{objective}",
        run=f"runs/{objective}",
    )


def preset_of(recipe: Recipe[Any], backbone: str) -> str:
    """The one named after the backbone; else the nearest, of a folder the nearest that pools as the folder says.

    The nearest is that of the backbone's family and size, by the name: of `bert-large-nli-cls-token` that of
    `bert-large-uncased`; else the fallback. What a hub id pools is known once it is loaded, too late to choose by.

    Raises:
        SourceError: the backbone is a folder that says what no encoder here is.
    """
    folder = path(backbone)
    by_backbone = [name for name in recipe.presets if not name.endswith(ON_PASSAGES)]
    if folder.name in by_backbone:
        return folder.name
    names = sorted(by_backbone, key=lambda name: (not _akin(folder.name, name), name != FALLBACK_PRESET))
    pooling = declared(folder).get("pooling")
    return next((name for name in names if recipe.presets[name].pooling == pooling), names[0])


def _akin(backbone: str, preset: str) -> bool:
    """Whether a backbone's name begins with a published one's family and size: `bert-large`."""
    return backbone.startswith(preset.removesuffix("-uncased"))


def _without(values: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Without those of `added` that have their earlier value."""
    return {name: value for name, value in values.items() if name not in added or value != added[name]}


def check_seed(seed: int) -> None:
    """Of all generators: numpy takes none below 0, torch none of 64 bits.

    Raises:
        ConfigError: one of them does not take it.
    """
    if seed < 0:
        raise ConfigError(f"seed: {seed} is below 0")
    if seed >= 1 << 63:
        raise ConfigError(f"seed: {seed} has more than 63 bits")


def check_folders(config: Any) -> None:
    """Of a run that leaves something; a study describes its runs without them.

    Raises:
        ConfigError: one is empty, which would be the working directory.
    """
    for name in ("out", "run"):
        if not getattr(config, name):
            raise ConfigError(f"{name}: is empty, expected a folder")


def place(name: str, values: Mapping[str, Any]) -> Any:
    """The value of a field; for a path, or each of several, where it leads."""
    value = values.get(name)
    if name not in PATHS or value is None:
        return value
    return [Path(path).resolve() for path in ((value,) if isinstance(value, str) else value)]


def checked(values: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """`values`, as JSON has them, each of the kind that `known` says; the very same names.

    Raises:
        ConfigError: a name is unknown or missing, or a value is of another kind.
    """
    if not isinstance(values, dict) or values.keys() != known.keys():
        odd = sorted(known.keys() ^ set(values))
        raise ConfigError(f"not the configuration of a run: unknown or missing {', '.join(map(str, odd))}")
    found = {}
    for name, value in values.items():
        try:
            found[name] = value if known[name] is Any else check(value, known[name])
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found
