"""Rebuild of an encoder from a recipe file.

A recipe describes training runs, the soup (average) of their encoders, and the expected scores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

from models.bundle.bundle import Bundle, BundleError, load
from models.bundle.sources import SourceError, resolve
from models.cli.fields import check_named, field_types
from models.export.destination import refuse_foreign
from training.checkpoints.publish import STS_MEAN, sts_scores
from training.config import PATH_FIELDS, ConfigError, RunConfig
from training.data.documents import Excerpt
from training.data.files import text_sha256
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, DataError, sts_tasks
from training.evaluation.selection import by_stsb_dev
from training.machine.interrupt import locked
from training.studies.description import PARTS, Study, read_toml
from training.studies.soup import SoupError, SoupRecipe, is_soup, make_soup
from training.studies.trial import StudyError, Trial
from training.studies.work import TEACHERS, drop_checkpoints, train_bundle, with_teacher

FOLDER = Path("runs/encoders")
"""Folder of the runs and their bundles. Soups are written to `ARTIFACTS`."""
EXCERPTS = FOLDER / "excerpts"
"""Folder of the files with excerpts of corpora."""
ARTIFACTS = Path("artifacts")
SERVED = ("default", "promoted")
"""Names in `ARTIFACTS` that only promotion may use."""
OWN = ("after", "excerpt", "soup", "expected", "tolerance", "corpus_sha256", "limits", "adapter")
Built = TypeVar("Built", SoupRecipe, Excerpt)
METRICS = (sts.STSB_DEV_METRIC, *STS_TASKS, STS_MEAN)
TOLERANCE = 0.05
"""Default tolerance of scores, in points. Scores differ slightly between machines, because arithmetic differs."""


@dataclass(frozen=True)
class Score:
    """A score of the rebuilt encoder and the expected score, in points."""

    metric: str
    found: float
    expected: float
    tolerance: float

    @property
    def met(self) -> bool:
        """True if the found score differs from the expected score by at most the tolerance."""
        return round(abs(self.found - self.expected), 6) <= self.tolerance

    def __str__(self) -> str:
        verdict = "as expected" if self.met else f"expected within {self.tolerance:g}"
        return f"{self.metric} {self.found:.2f}, {self.expected:.2f} {verdict}"


@dataclass(frozen=True)
class Rebuild:
    """A recipe for an encoder: a study whose trained encoders are averaged to a model soup."""

    study: Study
    mixing: SoupRecipe
    expected: Mapping[str, float]
    """Expected scores, by the names of scores in manifests."""
    tolerance: float
    excerpt: Excerpt | None = None
    """Part of the corpus used in training."""
    after: tuple[Rebuild, ...] = ()
    """Rebuilds that must come first, because this rebuild uses their encoders as starting points or teachers."""
    corpus_sha256: str | None = None
    """SHA-256 of the uncompressed corpus with which the expected scores were measured, or None if it is unknown."""
    limits: tuple[str, ...] = ()
    """Limitations for the model card, one sentence each."""
    adapter: str | None = None
    """Adapter in this repository that was extracted from the encoder, such as `minilm+default`."""

    @classmethod
    def read(cls, file: Path, *, wanted_by: tuple[Path, ...] = ()) -> Self:
        """Read a recipe and the recipes that it depends on from TOML files (docs/training.md).

        `wanted_by` are the files of the recipes that depend on this recipe.

        Raises:
            StudyError: a file can't be read; a recipe depends on itself, or has a name that is reserved for promotion;
                or a part is unknown or of the wrong shape.
        """
        values, known = read_toml(file), Path(os.path.realpath(file))
        if known in wanted_by:
            raise StudyError(f"{file}: after: the recipe depends on itself")
        if unknown := sorted(values.keys() - {*PARTS, *OWN}):
            raise StudyError(f"{file}: {unknown[0]}: unknown; a rebuild has {', '.join((*PARTS, *OWN))}")
        own = {key: values.pop(key) for key in OWN if key in values}
        study = Study.of(file, values)
        if study.name in SERVED:
            raise StudyError(f"{file}: name: {ARTIFACTS / study.name} is reserved for promotion; choose another name")
        try:
            made = cls(
                study,
                _built("soup", SoupRecipe, own.get("soup", {})),
                {
                    key: check_named(f"expected: {key}", value, float)
                    for key, value in _table("expected", own.get("expected", {}), METRICS).items()
                },
                check_named("tolerance", own.get("tolerance", TOLERANCE), float),
                _built("excerpt", Excerpt, own["excerpt"]) if "excerpt" in own else None,
                corpus_sha256=check_named("corpus_sha256", own.get("corpus_sha256"), str | None),
                limits=check_named("limits", own.get("limits", ()), tuple[str, ...]),
                adapter=check_named("adapter", own.get("adapter"), str | None),
            )
            before = check_named("after", own.get("after", ()), tuple[str, ...])
        except ValueError as error:
            raise StudyError(f"{file}: {error}") from error
        wanted_by = (*wanted_by, known)
        return replace(made, after=tuple(cls.read(file.parent / each, wanted_by=wanted_by) for each in before))

    @property
    def out(self) -> Path:
        """Return the folder of the rebuilt bundle."""
        return ARTIFACTS / self.study.name

    @property
    def card(self) -> dict[str, Any]:
        """Return the facts for the model card that are known before training."""
        return {"file": str(self.study.file), "about": self.study.about, "limits": [*self.limits]}

    @property
    def steps(self) -> list[Rebuild]:
        """Return the rebuilds that this rebuild depends on, each once and in order, followed by this rebuild.

        Raises:
            StudyError: two of these rebuilds are from different files, but have the same name.
        """
        found: dict[str, Rebuild] = {}
        for step in (*(step for each in self.after for step in each.steps), self):
            known = found.setdefault(step.study.name, step).study.file
            if known.resolve() != step.study.file.resolve():
                raise StudyError(f"{step.study.file}: name: {step.study.name!r} is also the name in {known}")
        return [*found.values()]

    def trials(self, data: Path, corpus: Sequence[str], to_come: Collection[Path] = ()) -> list[Trial]:
        """Return this recipe's training runs, which are evaluated on `data`.

        The runs train on the files `corpus` or, if the recipe has an `excerpt`, on this excerpt of the files. If
        `corpus` is empty, they train on the corpus that the recipe names. `to_come` are folders of encoders that may
        not exist yet.

        Raises:
            StudyError: see `Study.trials`; or a run has a setting that recipes do not allow, such as `fraction`; or the
                recipe gives soup weights, but not exactly one for each run; or the recipe has an `excerpt`, but
                `corpus` is empty.
            CorpusError: the excerpt can't be made.
        """
        given = {"corpus": [*corpus]} if corpus else {}
        if self.excerpt is not None:
            if not corpus:
                raise StudyError(f"{self.study.file}: excerpt: needs a corpus: name it with --corpus")
            given = {"corpus": [self.excerpt.write(corpus, EXCERPTS)]}
        study = self.study.override({"eval_data": str(data), **given})
        trials = {trial.id: trial for trial in study.trials(to_come)}
        for trial in trials.values():
            if trial != Trial(arm=trial.arm, axes=trial.axes, config=trial.config, inputs=trial.inputs):
                raise StudyError(
                    f"{study.file}: {trial.title}: an ingredient must be a training run on the whole corpus, evaluated "
                    "on STS: leave out fraction, untrained and other tasks"
                )
        try:
            self.mixing.shares(len(trials))
        except SoupError as error:
            raise StudyError(f"{study.file}: soup: {error}") from error
        return list(trials.values())

    def compared(self, bundle: Bundle) -> list[Score]:
        """Return each score in `expected` together with the score of the same name in the bundle's manifest."""
        scores = bundle.manifest.scores or {}
        return [Score(name, scores[name], score, self.tolerance) for name, score in self.expected.items()]


def rebuild(plan: Rebuild, data: Path, corpus: Sequence[str], stream: TextIO) -> Iterator[tuple[Rebuild, Bundle]]:
    """Carry out `plan` after the rebuilds that it depends on, and yield each rebuild with its bundle.

    For each rebuild, train the missing ingredients (encoders), average all ingredients to a soup, and evaluate the
    soup. If a rebuild that `plan` depends on already has a bundle with the same ingredients and the expected scores,
    this bundle is reused. All inputs are checked before training. If a recipe leaves the shares of its ingredients
    open, only the score on STS-B dev decides them. Progress goes to `stream`.

    Raises:
        StudyError: a recipe is wrong (see `Rebuild.steps` and `Rebuild.trials`), or lacks an encoder that it needs.
        CorpusError: the corpus can't be read or has too few texts, or the excerpt of the corpus can't be made.
        DataError: the data are broken, or lack STS-B dev or a task with an expected score.
        BundleError: the folder of a rebuild contains files that are not part of a bundle, or a bundle can't be read
            or written.
        LockError: another process works on one of the rebuilds.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`. A repeated call resumes an interrupted run.
        SoupError: the encoders of a rebuild can't be averaged.
        ExportError, OSError: see `models.export.export`.
    """
    steps, selection, tasks = plan.steps, by_stsb_dev(data), sts_tasks(data)
    text = text_sha256(corpus) if corpus and any(step.corpus_sha256 for step in steps) else None
    absent = [name for name in STS_TASKS if name not in tasks]
    for number, step in enumerate(steps):
        earlier = [one.out for one in steps[:number]]
        _check_sources(step, step.trials(data, corpus, to_come=earlier), earlier, steps[number:])
        if absent and (wanted := sorted(step.expected.keys() & {*absent, STS_MEAN})):
            raise DataError(f"{data}: lacks {', '.join(absent)}, and {step.study.file} expects {wanted[0]}")
        refuse_foreign(step.out)
        if text and step.expected and step.corpus_sha256 not in (None, text):
            print(
                f"{step.study.file}: the expected scores were measured with another corpus (SHA-256 of its text: "
                f"{step.corpus_sha256}, of this corpus: {text}), so scores may differ by more than {step.tolerance:g}",
                file=stream,
                flush=True,
            )
    # All locks are kept to the end, because a later rebuild may start from any earlier encoder, which must not change.
    with ExitStack() as held:
        for step in steps:
            held.enter_context(locked(FOLDER / step.study.name))
        for step in steps:
            folder = FOLDER / step.study.name
            ingredients = [str(_ingredient(trial, folder, stream)) for trial in step.trials(data, corpus)]
            made = _made_before(step, ingredients) if step is not plan else None
            if made is not None:
                print(f"{step.out}: from an earlier run", file=stream, flush=True)
            else:
                soup = make_soup(ingredients, step.mixing, selection, stream)
                made = soup.publish(step.out, sts_scores(soup.encoder, tasks, stream), step.card)
            yield step, made


def _check_sources(step: Rebuild, trials: Sequence[Trial], earlier: Collection[Path], later: Sequence[Rebuild]) -> None:
    """Check the encoders that `step` needs. Each must exist, be on the hub, or be made by an earlier rebuild.

    `earlier` has the folders of the earlier rebuilds' encoders. `later` has `step` and the rebuilds after it.

    Raises:
        StudyError: an encoder is missing, or a rebuild in `later` makes it.
    """
    to_come = {out.resolve() for out in earlier}
    makers = {one.out.resolve(): one.study.file for one in later}
    needed = {step.mixing.towards}
    for trial in trials:
        config = trial.config
        needed |= {config.backbone, config.teacher}
    for source in sorted(needed - {None}, key=str):
        place = Path(str(source)).resolve()
        if place in makers:
            raise StudyError(
                f"{step.study.file}: {source}: {makers[place]} makes this encoder, but is not an earlier step: name it "
                "in `after`"
            )
        if place not in to_come:
            try:
                resolve(str(source))
            except SourceError as error:
                raise StudyError(f"{step.study.file}: {error}") from error


def _made_before(step: Rebuild, ingredients: Sequence[str]) -> Bundle | None:
    """Return a rebuild's bundle if it is complete, has these ingredients and reaches the expected scores, else None."""
    try:
        made = load(step.out)
    except BundleError:
        return None
    judged = step.expected.keys() <= (made.manifest.scores or {}).keys()
    met = judged and all(score.met for score in step.compared(made))
    return made if met and is_soup(made.manifest, ingredients, step.mixing) else None


def _ingredient(trial: Trial, folder: Path, stream: TextIO) -> Path:
    """Return the folder of a run's bundle. Train the encoder first if there is no usable bundle (see `_is_kept`)."""
    place = folder / trial.id
    config = with_teacher(trial.config, folder / TEACHERS, stream)
    config = config.override({"out": str(place / "bundle"), "run": str(place / "record")})
    if _is_kept(config):
        print(f"{trial.title}: from an earlier run, {config.out}", file=stream, flush=True)
    else:
        print(f"{trial.title}: {config.out}", file=stream, flush=True)
        train_bundle(config, stream)
    drop_checkpoints(Path(config.run))
    return Path(config.out)


def _is_kept(config: RunConfig) -> bool:
    """Return whether the bundle of the run exists, is complete and was trained with the same configuration.

    Paths in the configuration are not compared. The name of the run's folder is a hash that also covers the content of
    the files at these paths, so a run with other files has another folder.
    """
    try:
        made = load(Path(config.out)).manifest.run or {}
    except BundleError:
        return False
    ours, theirs = json.loads(config.to_json()), made.get("config", {})
    return all(theirs.get(name) == value for name, value in ours.items() if name not in PATH_FIELDS)


def _built(part: str, kind: type[Built], values: Any) -> Built:
    """Return a `kind` with the settings in `values`, which is the table `part` of a recipe file.

    Raises:
        ValueError: a setting is unknown, out of range or of the wrong type; the message begins with `part`.
    """
    known = field_types(kind)
    given = {
        key: check_named(f"{part}: {key}", value, known[key]) for key, value in _table(part, values, known).items()
    }
    try:
        return kind(**given)
    except ValueError as error:
        raise ConfigError(f"{part}: {error}") from error


def _table(part: str, values: Any, known: Collection[str]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{part}: expected a table, got {values!r}")
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(f"{part}: {unknown[0]}: unknown; there is {', '.join(known)}")
    return values
