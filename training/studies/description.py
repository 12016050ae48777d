"""Study files. A study file describes the shared settings and the varied settings of a study's runs."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args

from models.cli.fields import check_named, check_value, field_types
from training.config import NOT_SET, ConfigError, RunConfig, from_preset
from training.objectives import OBJECTIVES
from training.studies.trial import InputDigests, StudyError, Trial

PARTS = {"name": str, "about": str, "base": dict, "grid": dict, "arm": list}
OF_A_PAPER = {"paper": str, "untestable": str, "figures": list, "published": dict, "reported": dict}
"""Parts of a study file that only a study of a paper's table or figure has, with their types."""
RESTATED = ("grid", "arm")
"""Parts of a study that `published` may replace. All other keys of `published` form the new `base`."""
STUDIES = Path(__file__).parents[2] / "studies"
"""Folder of the named studies. Names include the subfolder: `dclr/table-2`."""
NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
OWN = {
    "fraction": (float, 1.0),
    "untrained": (bool, False),
    "transfer": (bool, False),
    "sts": (bool, True),
    "retrieval": (tuple[str, ...], ()),
    "neighbours": (int, 0),
}
"""Settings of a study's run that are not fields of `RunConfig`, with their types and defaults."""
START = ("objective", "backbone", "preset", "ablation")
"""Settings that choose a run's starting point. All remaining settings are fields of the run or of its objective."""

FOLDERS = ("out", "run")
"""Fields of a run that study files can't set, because the study chooses the folders."""

JUDGED_BY = ("backbone", "pooling", "eval_data", "device", "sts", "transfer", "retrieval", "neighbours")
"""Settings that affect the result of an untrained encoder."""
CORPUS = ("corpus", "text_column")
"""Settings that affect the result of an untrained encoder only if neighbours in the corpus are measured."""
POOLED_BY = (*START, "pooling")
"""Settings that determine a run's pooling."""


@dataclass(frozen=True)
class Arm:
    """An arm of a study, with a name, settings, and optionally axes, which are settings with several values."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reported:
    """Scores that a paper reports for the runs of a study, by label of the runs."""

    of: str
    """Backbone and metric of the reported scores."""
    scores: Mapping[str, float]

    @classmethod
    def of_part(cls, values: Mapping[str, Any], where: str) -> Self:
        """Parse the part `reported` of a study file. Error messages begin with `where`.

        Raises:
            StudyError: a key is missing or of the wrong type, or a score is not a number.
        """
        try:
            of, scores = check_value(values.get("of"), str), values["scores"]
            return cls(of, {label: float(score) for label, score in scores.items()})
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise StudyError(f"{where}: expected `of`, text, and `scores`, numbers by label, got {values!r}") from error


@dataclass(frozen=True)
class Study:
    """A study of one or several arms.

    An axis is a setting with several values. Each arm has the axes of the study, and can have axes of its own. An arm
    has a run for each combination of the values of its axes.
    """

    file: Path
    name: str
    about: str
    base: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    arms: tuple[Arm, ...]
    paper: str = ""
    """The table or figure that the study repeats, for example `DCLR, Table 2`."""
    untestable: str = ""
    """Reason why the study can test the paper's result only with `--published`, or "" if there is none."""
    published: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the study for `--published`, which uses the backbone of the paper."""
    reported: Reported | None = None
    figures: tuple[str, ...] = ()
    """Ids, or beginnings of ids, of the report's figures that repeat the paper's figure."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a study from a TOML file (docs/studies.md).

        Raises:
            StudyError: the file can't be read, or a part is unknown, missing or of the wrong shape.
        """
        return cls.of(file, read_toml(file))

    @classmethod
    def of(cls, file: Path, values: Mapping[str, Any]) -> Self:
        """Parse the contents of a study file.

        Raises:
            StudyError: a part is unknown, missing or of the wrong shape.
        """
        known = {**PARTS, **OF_A_PAPER}
        for key, value in values.items():
            if key not in known:
                raise StudyError(f"{file}: {key}: unknown; a study has {', '.join(known)}")
            if not isinstance(value, known[key]):
                raise StudyError(f"{file}: {key}: expected {known[key].__name__}, got {value!r}")
        name = values.get("name", name_of(file))
        if not NAME.fullmatch(name):
            raise StudyError(f"{file}: name: {name!r} is not a valid name: use letters, digits, '.', '_', '-' and '/'")
        reported = Reported.of_part(values["reported"], f"{file}: reported") if "reported" in values else None
        grid = _axes(values.get("grid", {}), f"{file}: grid")
        if twice := sorted(grid.keys() & values.get("base", {}).keys()):
            raise StudyError(f"{file}: base: {twice[0]}: is an axis already")
        arms = tuple(_arm(values, grid, f"{file}: arm {n}") for n, values in enumerate(values.get("arm", []), start=1))
        if repeated := [name for name, count in Counter(arm.name for arm in arms).items() if count > 1]:
            raise StudyError(f"{file}: arm: the name {repeated[0]!r} is given twice")
        return cls(
            file=file,
            name=name,
            about=values.get("about", ""),
            base=values.get("base", {}),
            grid=grid,
            arms=arms or (Arm(""),),
            paper=values.get("paper", ""),
            untestable=values.get("untestable", ""),
            published=_restated(values),
            reported=reported,
            figures=tuple(map(str, values.get("figures", ()))),
        )

    def as_published(self) -> Self:
        """Return the study with the backbone and settings of the paper whose result it repeats.

        Raises:
            StudyError: the study file has no part `published`, or an axis or arm in this part is invalid.
        """
        if not self.published:
            raise StudyError(f"{self.file}: --published: the file has no part [published]")
        restated = self.of(self.file, {"name": self.name, "about": self.about, **self.published})
        return replace(restated, paper=self.paper, reported=self.reported, figures=self.figures)

    def override(self, changes: Mapping[str, Any]) -> Self:
        """Return the study with the settings in `changes` replaced. The new value of an axis is a list of values.

        Raises:
            StudyError: the new value of an axis is not a list of different values, or an arm's own settings contain a
                key of `changes`.
        """
        base, grid, arms = dict(self.base), dict(self.grid), list(self.arms)
        for key, value in changes.items():
            if key in grid:
                grid |= _axes({key: value}, f"{self.file}: grid")
            elif owners := [arm.name for arm in arms if key in arm.settings]:
                raise StudyError(
                    f"{self.file}: {key}: arm {owners[0]!r} sets this key itself, so it can't be changed for all arms"
                )
            elif any(key in arm.grid for arm in arms):
                axis = _axes({key: value}, f"{self.file}: arm.grid")
                arms = [replace(arm, grid={**arm.grid, **axis}) if key in arm.grid else arm for arm in arms]
            else:
                base[key] = value
        return replace(self, base=base, grid=grid, arms=tuple(arms))

    def trials(self, to_come: Collection[Path] = ()) -> list[Trial]:
        """Return every run, arm by arm.

        A run with the setting `untrained` evaluates an encoder without training. Two such runs are merged if only
        settings of training differ. Encoders whose folders are in `to_come` need not exist yet, because they are
        identified by path.

        Raises:
            StudyError: a setting is unknown, out of range or of the wrong type; settings contradict each other; a
                corpus is not a file; the folder of another encoder is missing; or runs with the same label differ by
                more than their seed.
        """
        contents = InputDigests(to_come)
        found: dict[tuple[str, str], Trial] = {}
        seedless: dict[str, str] = {}
        for arm in self.arms:
            axes = {**self.grid, **arm.grid}
            for point in product(*axes.values()):
                trial = self._trial(arm, dict(zip(axes, point, strict=True)), contents)
                averaged = replace(trial, config=replace(trial.config, seed=0)).id
                if seedless.setdefault(trial.label, averaged) != averaged:
                    raise StudyError(
                        f"{self.file}: {trial.label!r} is the label of runs with different settings: rename an arm"
                    )
                found.setdefault((trial.id, trial.label), trial)
        return list(found.values())

    @cached_property
    def cached_trials(self) -> list[Trial]:
        """All runs, as `trials` returned them at the first access. Input files that change later are not read again."""
        return self.trials()

    def _trial(self, arm: Arm, axes: Mapping[str, Any], contents: InputDigests) -> Trial:
        settings = {**self.base, **arm.settings, **axes}
        where = f"{self.file}: " + (f"arm {arm.name!r}: " if arm.name else "")
        try:
            own = {key: check_named(key, settings.pop(key, default), kind) for key, (kind, default) in OWN.items()}
            if not (own["sts"] or own["transfer"] or own["retrieval"]):
                raise ConfigError("sts: a run without STS tasks needs retrieval or transfer for its evaluation")
            if not 0 < own["fraction"] <= 1:
                raise ConfigError(f"fraction: {own['fraction']} is not greater than 0 and at most 1")
            if own["untrained"]:
                judged_by = (*JUDGED_BY, *CORPUS) if own["neighbours"] else JUDGED_BY
                kept = {key: value for key, value in settings.items() if key in judged_by}
                axes = {key: value for key, value in axes.items() if key in judged_by}
                pooled = {key: settings[key] for key in POOLED_BY if key in settings}
                pooling = _config({"objective": "simcse", **pooled}).pooling
                settings, own["fraction"] = {**kept, "objective": "simcse", "pooling": pooling}, 1.0
            config = _config(settings)
            if OBJECTIVES[config.objective].needs_named_teacher and config.teacher is None:
                raise ConfigError(f"teacher: {config.objective} needs a teacher: set its name or folder")
            if own["fraction"] < 1 and config.positives is not None:
                raise ConfigError(
                    f"fraction: needs a corpus of sentences, but augmentation={config.augmentation} needs passages"
                )
            judged = {key: own[key] for key in ("sts", "transfer", "retrieval")}
            return Trial(arm=arm.name, axes=axes, config=config, inputs=contents.of(config, **judged), **own)
        except ValueError as error:
            raise StudyError(f"{where}{error}") from error


def name_of(file: Path) -> str:
    """Return a study's default name, which is the path of its file relative to `STUDIES`, without the suffix.

    If the file is outside `STUDIES`, the name is the file's name without the suffix.
    """
    resolved = file.resolve()
    if resolved.is_relative_to(STUDIES):
        return resolved.relative_to(STUDIES).with_suffix("").as_posix()
    return file.stem


def file_of(named: Path) -> Path:
    """Return the path of a study's file. `named` is this path, or the name of a study, such as `dclr/table-2`.

    Raises:
        StudyError: `named` does not end in `.toml`, and is neither an existing file nor the name of a study.
    """
    if named.suffix == ".toml" or named.is_file():
        return named
    if (file := STUDIES / f"{named}.toml").is_file() and NAME.fullmatch(str(named)):
        return file
    raise StudyError(f"{named}: no such study; {_where_studies_are()}")


def _restated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base`, `grid` and `arm` of a study file after the changes in the file's part `published`.

    The result is {} if the file has no such part.
    """
    if (published := values.get("published")) is None:
        return {}
    base = {key: value for key, value in published.items() if key not in RESTATED}
    parts = {key: published.get(key, values.get(key)) for key in RESTATED}
    return {"base": base, **{key: part for key, part in parts.items() if part is not None}}


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        StudyError: the file can't be read, or is not valid TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        if file.is_relative_to(STUDIES) and not STUDIES.is_dir():
            raise StudyError(_where_studies_are()) from error
        raise StudyError(f"{file}: {error.strerror}") from error
    # A TOMLDecodeError names the line. Other errors mean invalid UTF-8 or deep nesting.
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{file}: {_unreadable(error)}") from error


def _where_studies_are() -> str:
    if STUDIES.is_dir():
        return "`isosphere study list` lists the studies"
    return "the papers' studies are not part of the installed package: name a file, or use a checkout of the repository"


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts of the form `KEY=VALUE`, and return the values by key.

    A value that is not valid TOML is returned as text.

    Raises:
        StudyError: a text has no key or no `=`, or a value is nested too deeply or is a number with too many digits.
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, written = text.partition("=")
        if not (key and equals):
            raise StudyError(f"--set {text}: expected KEY=VALUE")
        try:
            values[key] = tomllib.loads(f"value = {written}")["value"]
        except tomllib.TOMLDecodeError:
            values[key] = written
        # A number with thousands of digits and a value with thousands of brackets raise other errors than
        # TOMLDecodeError.
        except (ValueError, RecursionError) as error:
            raise StudyError(f"--set {key}: {_unreadable(error)}") from error
    return values


def _unreadable(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _config(settings: Mapping[str, Any]) -> RunConfig:
    """Build the configuration of a run from `settings`. The fields in `FOLDERS` are left empty.

    Raises:
        ValueError: the objective is missing, or a setting is unknown, out of range or of the wrong type.
        SourceError: the backbone is a folder without a supported encoder.
    """
    chosen = {key: check_named(key, settings[key], str) for key in START if key in settings}
    if "objective" not in chosen:
        raise ConfigError("objective: missing, in [base], in [grid] or in the arm")
    objective, backbone = chosen["objective"], chosen.get("backbone", "minilm")
    config = from_preset(objective, backbone=backbone, preset=chosen.get("preset"))
    if (ablation := chosen.get("ablation", "none")) != "none":
        config = from_preset(objective, backbone=backbone, preset=f"{config.preset}+{ablation}")
    known = field_types(RunConfig) | field_types(type(config.params))
    known = {name: kind for name, kind in known.items() if name not in (*NOT_SET, *FOLDERS)}
    changes = {}
    for key, value in settings.items():
        if key in START:
            continue
        if key not in known:
            raise ConfigError(f"{key}: unknown; {objective} has {', '.join(sorted({*known, *START, *OWN}))}")
        absent = value == "none" and NoneType in get_args(known[key])  # TOML has no None.
        changes[key] = check_named(key, None if absent else value, known[key])
    return config.override({**changes, **dict.fromkeys(FOLDERS, "")})


def _arm(values: Any, grid: Mapping[str, Any], where: str) -> Arm:
    if not isinstance(values, dict) or not isinstance(name := values.get("name"), str) or not name:
        raise StudyError(f"{where}: name: missing, or not text")
    own = values.get("grid", {})
    if not isinstance(own, dict):
        raise StudyError(f"{where}: grid: expected a table of lists, got {own!r}")
    settings = {key: value for key, value in values.items() if key not in ("name", "grid")}
    for key in (*settings, *own):
        if key in grid or (key in settings and key in own):
            raise StudyError(f"{where}: {key}: is an axis already")
    return Arm(name, settings, _axes(own, f"{where}: grid"))


def _axes(values: Mapping[str, Any], where: str) -> dict[str, Sequence[Any]]:
    for key, points in values.items():
        if not isinstance(points, list) or not points:
            raise StudyError(f"{where}: {key}: expected a list of values for the axis, got {points!r}")
        if any(points.count(point) > 1 for point in points):
            raise StudyError(f"{where}: {key}: a value is given twice")
    return dict(values)
