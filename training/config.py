"""Configuration of a run: a preset with overrides, checked and stored as JSON.

`Configuration` is the part that training and pre-training share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from models.bundle.sources import path
from models.cli.fields import check_finite, check_value, field_types, parse_settings
from models.encoder.config import read_config
from models.encoder.pooling import parts
from models.errors import Refused, none_of
from training.data.augment import Augmentation
from training.data.positives import POSITIVES, Positives
from training.machine.hardware import Precision
from training.objectives import OBJECTIVES
from training.objectives.base import PASSAGES_SUFFIX, AugmentationName, Recipe

FALLBACK_PRESET = "bert-base-uncased"
"""Preset for a backbone whose name matches no preset.

If the backbone is a folder that declares a pooling, `preset_of` prefers presets with this pooling.
"""

NOT_SET = ("objective", "backbone", "preset", "params")
"""Fields of a run that `--set` rejects, because they have options of their own."""

PATH_FIELDS = ("backbone", "corpus", "dev_data", "eval_data", "out", "run", "teacher", "tokenizer")
"""Fields that contain paths. Paths are resolved before they are compared."""

PRESET_FIELDS = ("batch_size", "learning_rate", "pooling", "epochs", "dropout", "augmentation", "max_length", "layers")
"""Fields of a run whose values come from a preset. `params` is not listed, because an ablation can change it."""

POSITIVE_FIELDS = (
    *("adapter_rank", "batch_size", "chunk_size", "epochs", "eval_every", "max_length", "max_steps"),
    *("learning_rate", "clip_norm", "layers", "width", "heads", "steps"),
)

ADDED_FIELDS = {
    "adapter_rank": None,
    "dev_data": None,
    "dev_tasks": "stsb",
    "layers": None,
    "matryoshka": None,
    "text_column": None,
}
"""Fields that configurations of earlier versions lack, with the values that apply to those configurations."""

MIN_LENGTH = 3
"""Minimum length in tokens: one token and two special tokens."""

DevTasks = Literal["stsb", "stsb+sickr"]


class ConfigError(Refused):
    """The configuration is invalid. The message is one line and names the option."""


class Configuration:
    """Base class of the frozen dataclasses that configure training and pre-training."""

    out: str
    """Folder of the result."""
    run: str
    """Folder of the run's record."""

    def check(self) -> None:
        """Check the fields that training and pre-training share.

        Raises:
            ConfigError: a value is out of range.
        """
        try:
            check_finite(self)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        values = self.flat()
        for name in POSITIVE_FIELDS:
            if isinstance(value := values.get(name), int | float) and not value > 0:
                raise ConfigError(f"{name}: {value} is not above 0")
        if values["weight_decay"] < 0:
            raise ConfigError(f"weight_decay: {values['weight_decay']} is below 0")
        for name in ("dropout", "warmup"):
            if (value := values.get(name)) is not None and not 0 <= value < 1:
                raise ConfigError(f"{name}: {value} is not at least 0 and less than 1")
        check_seed(values["seed"])
        if values["max_length"] < MIN_LENGTH:
            raise ConfigError(f"max_length: {values['max_length']} leaves no room between the special tokens")

    def flat(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Any]:
        return self.flat()

    def to_json(self) -> str:
        """Return the configuration as a JSON object with a line for each field."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text that `to_json` wrote.

        Raises:
            ConfigError: the text is not JSON, a key is unknown or missing, or a value is of the wrong type or out of
                range.
        """
        try:
            return cls.from_dict(json.loads(text))
        except ConfigError:
            raise
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"not the configuration of a run: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build the configuration from the values of its fields, as parsed from JSON.

        Raises:
            ConfigError: a key is unknown or missing, or a value is of the wrong type or out of range.
        """
        types = field_types(cls)
        added = {name: value for name, value in ADDED_FIELDS.items() if name in types}
        return cls(**check_fields({**added, **values}, types))

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with changed fields. `changes` maps names of fields to their new values.

        Raises:
            ConfigError: a value is out of range.
        """
        return replace(self, **changes)  # type: ignore[type-var]

    def settable(self) -> dict[str, Any]:
        """Return the types of the fields that `--set` accepts."""
        return field_types(type(self))

    def parse(self, texts: Sequence[str]) -> dict[str, Any]:
        """Parse `key=value` settings. Return the values by key, each converted to the type of its field.

        Raises:
            ConfigError: a key is unknown, or a value has the wrong type.
        """
        try:
            return parse_settings(texts, self.settable())
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def differences(self, other: Configuration) -> list[str]:
        """Describe each field whose value differs in `other`, as `field (own value, other value)`.

        Paths are resolved before the comparison.
        """
        mine, theirs = self.flat(), other.flat()
        names = [name for name in mine if resolved(name, mine) != resolved(name, theirs)]
        return [f"{name} ({mine[name]}, {theirs.get(name)})" for name in names]


@dataclass(frozen=True, kw_only=True)
class RunConfig(Configuration):
    """Everything that affects a run's result. `from_json(to_json())` returns an equal configuration."""

    objective: str
    params: Any
    """Parameters of the objective, a frozen dataclass."""
    backbone: str
    preset: str
    """Name of a preset in the objective's recipe, or `preset+ablation`."""
    batch_size: int
    learning_rate: float
    pooling: str
    epochs: int
    out: str
    """Folder of the bundle."""
    run: str
    """Folder of the run's record."""
    corpus: tuple[str, ...] = ()
    """Files, folders, glob patterns or `hf://` URLs. The files are text with one sentence per line, or tables.

    If empty, the corpus is Python's documentation.
    """
    text_column: str | None = None
    """Column of the corpus's tables. None means `text` or, if this column is missing, `sentence`."""
    teacher: str | None = None
    """Name or folder of the teacher. With None, SimCSE first trains a teacher if the objective needs one."""
    eval_data: str | None = None
    """Folder in SentEval's layout. Its dev sets (see `dev_tasks`) choose the best weights, unless `dev_data` is set."""
    dev_data: str | None = None
    """File of the user's scored pairs. If set, these pairs choose the best weights, instead of `eval_data`."""
    dev_tasks: DevTasks = "stsb"
    """Dev sets in `eval_data` whose score chooses the best weights: STS-B, or the mean of STS-B and SICK-R."""
    seed: int = 42
    max_steps: int | None = None
    """Number of steps, in place of epochs. The learning rate reaches zero at the last step."""
    max_length: int = 32
    """Maximum tokens of a training sentence, special ones included. Evaluation uses the encoder's own limit."""
    dropout: float | None = None
    """Dropout of hidden states and attention weights. None keeps the backbone's own rate."""
    augmentation: AugmentationName = "none"
    """Augmentation of the last view, in addition to dropout.

    With `crop`, `cloze` or `title`, two texts are drawn from each passage instead: one for the first view, and one for
    all other views.
    """
    augmentation_rate: float | None = None
    """Share of tokens or features that the augmentation removes or moves. None means the default rate."""
    adapter_rank: int | None = None
    """Rank of a low-rank adapter that is trained instead of the backbone. None means full fine-tuning."""
    layers: tuple[int, ...] | None = None
    """Layers of the backbone that the trained encoder keeps, counted from 0.

    None keeps all layers. With an empty list, the encoder keeps no layer and is a table of token vectors.
    """
    matryoshka: tuple[int, ...] | None = None
    """Widths of prefixes of the vectors. The objective is also computed on each of these prefixes."""
    chunk_size: int | None = None
    """Maximum number of sentences in one encoder pass, with gradient caching.

    Gradient caching allows batches of any size.
    """
    weight_decay: float = 0.0
    """Weight decay of matrices. Norms and biases have none."""
    clip_norm: float = 1.0
    eval_every: int = 125
    """Steps between evaluations, and between checkpoints."""
    precision: Precision = "auto"
    """Precision of the encoder's matrix products in training. `auto` is bf16 if the hardware supports it."""
    compile: bool = False
    """True to compile the backbone with torch.

    Compilation needs a C++ compiler and takes minutes. On two CPU cores, it did not reduce the total time.
    """
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"objective {none_of(self.objective, OBJECTIVES)}")
        self.check()
        try:
            parts(self.pooling)
            check_finite(self.params)
            _ = self.augmented  # The augmentation checks its rate.
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.layers == () and self.pooling != "mean":
            raise ConfigError(
                f"pooling: {self.pooling} needs layers: an encoder without layers must have the pooling mean"
            )
        if self.augmentation == "none" and self.augmentation_rate is not None:
            raise ConfigError(f"augmentation_rate: {self.augmentation_rate} needs an augmentation: set one, too")
        if self.positives and self.augmentation_rate is not None:
            raise ConfigError(f"augmentation_rate: the augmentation {self.augmentation} has no rate: leave it out")

    @property
    def augmented(self) -> Augmentation | None:
        if self.augmentation == "none" or self.positives is not None:
            return None
        return Augmentation(self.augmentation, self.augmentation_rate)

    @property
    def positives(self) -> Positives | None:
        """Return the function that draws the two texts of a positive pair from a passage.

        Return None if `augmentation` names no such function. All views of a sentence then have the same text.
        """
        return POSITIVES.get(self.augmentation)

    def flat(self) -> dict[str, Any]:
        return {name: value for name, value in super().flat().items() if name != "params"} | asdict(self.params)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, including the objective's parameters.

        `ADDED_FIELDS` maps each field that earlier versions lacked to the value that applies to their runs. A field
        with this value is left out, so runs of earlier versions keep their JSON and digest. In the same way, a
        parameter is left out if it has its value in the `added_params` of the objective's recipe.
        """
        added = OBJECTIVES[self.objective].added_params
        return _without(asdict(self), ADDED_FIELDS) | {"params": _without(asdict(self.params), added)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        if missing := [name for name in ("objective", "params") if name not in values]:
            raise ConfigError(f"not the configuration of a run: {' and '.join(missing)} missing")
        if values["objective"] not in OBJECTIVES:
            raise ConfigError(f"objective {none_of(values['objective'], OBJECTIVES)}")
        recipe = OBJECTIVES[values["objective"]]
        params = type(next(iter(recipe.presets.values())).params)
        given = check_fields({**recipe.added_params, **values["params"]}, field_types(params))
        return super().from_dict({**values, "params": params(**given)})

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with changed fields. `changes` may name fields of the run and parameters of the objective.

        Raises:
            ConfigError: a name is unknown, or a value is out of range.
        """
        own = {field.name for field in fields(self)}
        theirs = {name: value for name, value in changes.items() if name not in own}
        try:
            params = replace(self.params, **theirs)
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from error
        return replace(self, params=params, **{name: changes[name] for name in changes if name in own})

    def settable(self) -> dict[str, Any]:
        known = field_types(type(self)) | field_types(type(self.params))
        return {name: kind for name, kind in known.items() if name not in NOT_SET}


def from_preset(objective: str, *, backbone: str = "minilm", preset: str | None = None) -> RunConfig:
    """Return the configuration of `objective` for a backbone.

    `preset` is the name of a preset or `preset+ablation`. If it is None, `preset_of` chooses the preset.

    Raises:
        ConfigError: the objective, preset or ablation does not exist.
        SourceError: the backbone is a folder without a supported encoder.
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
        **{field: getattr(values, field) for field in PRESET_FIELDS},
        out=f"artifacts/{objective}",
        run=f"runs/{objective}",
    )


def preset_of(recipe: Recipe[Any], backbone: str) -> str:
    """Return the name of the preset for a backbone: the preset of the same name, else the nearest preset.

    The nearest preset matches the backbone's family and size by name: `bert-large-nli-cls-token` and
    `unsup-simcse-bert-large-uncased` get `bert-large-uncased`. If no name matches, `FALLBACK_PRESET` is the nearest
    preset. Presets for passages are never chosen.

    If the backbone is a folder that declares a pooling, only presets with this pooling are considered, if there are
    any. If neither a preset with a matching name nor `FALLBACK_PRESET` has this pooling, the first preset with this
    pooling is chosen. For a backbone given as a hub id, presets with any pooling are considered, because its pooling
    is known only after loading.

    Raises:
        SourceError: the backbone is a folder without a supported encoder.
    """
    folder = path(backbone)
    by_backbone = [name for name in recipe.presets if not name.endswith(PASSAGES_SUFFIX)]
    if folder.name in by_backbone:
        return folder.name
    # The hyphens keep `roberta-large` and `albert-large` from matching `bert-large`.
    other_family = {name: f"-{name.removesuffix('-uncased')}" not in f"-{folder.name}" for name in by_backbone}
    names = sorted(by_backbone, key=lambda name: (other_family[name], name != FALLBACK_PRESET))
    pooling = read_config(folder).get("pooling")
    return next((name for name in names if recipe.presets[name].pooling == pooling), names[0])


def _without(values: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without the fields that have the same value in `added`."""
    return {name: value for name, value in values.items() if name not in added or value != added[name]}


# Checks of single fields.


def check_seed(seed: int) -> None:
    """Check that every generator accepts the seed. Numpy needs a seed of at least 0, and torch a seed below 2**63.

    Raises:
        ConfigError: a generator does not accept the seed.
    """
    if seed < 0:
        raise ConfigError(f"seed: {seed} is below 0")
    if seed >= 1 << 63:
        raise ConfigError(f"seed: {seed} has more than 63 bits")


def check_folders(config: Configuration) -> None:
    """Check that the fields `out` and `run` are not empty.

    `Configuration.check` accepts empty names, because studies describe runs without folders.

    Raises:
        ConfigError: the name of a folder is empty, which would mean the working directory.
    """
    for name in ("out", "run"):
        if not getattr(config, name):
            raise ConfigError(f"{name}: is empty, expected a folder")


def resolved(name: str, values: Mapping[str, Any]) -> Any:
    """Return the value of the field `name`, or None if it has no value.

    The value of a field in `PATH_FIELDS` is returned as a list of resolved paths.
    """
    value = values.get(name)
    if name not in PATH_FIELDS or value is None:
        return value
    return [Path(path).resolve() for path in ((value,) if isinstance(value, str) else value)]


def check_fields(values: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Check JSON values against the types in `known`, and return the converted values.

    `values` must have exactly the names in `known`.

    Raises:
        ConfigError: a name is unknown or missing, or a value is of another type.
    """
    if not isinstance(values, dict) or values.keys() != known.keys():
        odd = sorted(known.keys() ^ set(values))
        raise ConfigError(f"not the configuration of a run: unknown or missing {', '.join(map(str, odd))}")
    found = {}
    for name, value in values.items():
        try:
            found[name] = value if known[name] is Any else check_value(value, known[name])
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from error
    return found
