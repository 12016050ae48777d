"""An encoder made once more from a file that says all of it: the runs, their soup, and the scores to come to."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TextIO, TypeVar

from models.bundle import Bundle, BundleError, load
from models.destination import refuse_foreign
from models.sources import SourceError, resolve
from training import record, run
from training.config import PATHS, ConfigError, RunConfig
from training.corpus.excerpt import Excerpt
from training.corpus.files import text_sha256
from training.evaluation import sts
from training.evaluation.pairs import STS_TASKS, DataError, sts_tasks
from training.fields import check, kinds
from training.lock import locked
from training.objectives import OBJECTIVES
from training.publish import STS_MEAN, publish, sts_scores
from training.selection import by_stsb_dev
from training.soups.ingredients import SoupError
from training.soups.soup import Mixing, cook, is_soup
from training.study.description import PARTS, Study, contents
from training.study.teachers import drop_checkpoints, with_teacher
from training.study.trial import StudyError, Trial
from training.study.work import TEACHERS

FOLDER = Path("runs/encoders")
"""Of the runs and their bundles; the soup goes to `ARTIFACTS`."""
EXCERPTS = FOLDER / "excerpts"
"""Of corpora, one file each."""
ARTIFACTS = Path("artifacts")
SERVED = ("default", "promoted")
"""What promotion has in `ARTIFACTS`."""
OWN = ("after", "excerpt", "soup", "expected", "tolerance", "corpus_sha256", "limits", "adapter")
Built = TypeVar("Built", Mixing, Excerpt)
METRICS = (sts.STSB_DEV_METRIC, *STS_TASKS, STS_MEAN)
TOLERANCE = 0.05
"""Points, where the file has none: what another machine's arithmetic may make of the same seeds."""


@dataclass(frozen=True)
class Score:
    """One of the rebuilt encoder, in points, and what it was to be."""

    metric: str
    found: float
    expected: float
    tolerance: float

    @property
    def met(self) -> bool:
        """Whether the two are near enough."""
        return round(abs(self.found - self.expected), 6) <= self.tolerance

    def __str__(self) -> str:
        verdict = "as expected" if self.met else f"expected within {self.tolerance:g}"
        return f"{self.metric} {self.found:.2f}, {self.expected:.2f} {verdict}"


@dataclass(frozen=True)
class Rebuild:
    """A study whose runs are the ingredients of a soup."""

    study: Study
    mixing: Mixing
    expected: Mapping[str, float]
    """By the metrics of a manifest."""
    tolerance: float
    excerpt: Excerpt | None = None
    """The part of the corpus that it trains on."""
    after: tuple[Rebuild, ...] = ()
    """What is made before it: it begins at those encoders, or learns from them."""
    corpus_sha256: str | None = None
    """Of the text, unpacked, that came to the expected scores; None where nobody said."""
    limits: tuple[str, ...] = ()
    """What its card is to warn of, a sentence each."""
    adapter: str | None = None
    """The encoder of the repository that was cut from it, such as `minilm+default`."""

    @classmethod
    def read(cls, file: Path, *, wanted_by: tuple[Path, ...] = ()) -> Self:
        """What a TOML file describes, and those it comes after; see docs/training.md.

        Raises:
            StudyError: one can't be read, comes after itself (of `wanted_by`), or a part is unknown or of the wrong
                shape.
        """
        values, known = contents(file), Path(os.path.realpath(file))
        if known in wanted_by:
            raise StudyError(f"{file}: after: it comes after itself")
        if unknown := sorted(values.keys() - {*PARTS, *OWN}):
            raise StudyError(f"{file}: {unknown[0]}: unknown; a rebuild has {', '.join((*PARTS, *OWN))}")
        own = {key: values.pop(key) for key in OWN if key in values}
        study = Study.of(file, values)
        if study.name in SERVED:
            raise StudyError(f"{file}: name: {ARTIFACTS / study.name} is promotion's; give another name")
        try:
            made = cls(
                study,
                _built("soup", Mixing, own.get("soup", {})),
                _scores(own.get("expected", {})),
                _checked("tolerance", own.get("tolerance", TOLERANCE), float),
                _built("excerpt", Excerpt, own["excerpt"]) if "excerpt" in own else None,
                corpus_sha256=_checked("corpus_sha256", own.get("corpus_sha256"), str | None),
                limits=_checked("limits", own.get("limits", ()), tuple[str, ...]),
                adapter=_checked("adapter", own.get("adapter"), str | None),
            )
            before = _checked("after", own.get("after", ()), tuple[str, ...])
        except ValueError as error:
            raise StudyError(f"{file}: {error}") from error
        wanted_by = (*wanted_by, known)
        return replace(made, after=tuple(cls.read(file.parent / each, wanted_by=wanted_by) for each in before))

    @property
    def out(self) -> Path:
        """Folder of the bundle."""
        return ARTIFACTS / self.study.name

    @property
    def card(self) -> dict[str, Any]:
        """What the bundle's card says besides its runs."""
        return {"file": str(self.study.file), "about": self.study.about, "limits": [*self.limits]}

    @property
    def steps(self) -> list[Rebuild]:
        """All that it comes after, each once and behind what that comes after, and itself at the end.

        Raises:
            StudyError: two files give one name.
        """
        found: dict[str, Rebuild] = {}
        for step in (*(step for each in self.after for step in each.steps), self):
            known = found.setdefault(step.study.name, step).study.file
            if known.resolve() != step.study.file.resolve():
                raise StudyError(f"{step.study.file}: name: {step.study.name!r} is that of {known}, too")
        return [*found.values()]

    def trials(self, data: Path, corpus: Sequence[str], to_come: Collection[Path] = ()) -> list[Trial]:
        """The runs, on these evaluation data and on this corpus, if one is given, instead of the file's.

        Encoders in `to_come` need not be there yet.

        Raises:
            StudyError: see `Study.trials`; or what is a study's alone is asked for, there is not one weight a run, or
                there is an excerpt of no corpus.
            CorpusError: the excerpt can't be made.
        """
        given = {"corpus": [*corpus]} if corpus else {}
        if self.excerpt is not None:
            if not corpus:
                raise StudyError(f"{self.study.file}: excerpt: of which corpus? name it by --corpus")
            given = {"corpus": [self.excerpt.write(corpus, EXCERPTS)]}
        study = self.study.override({"eval_data": str(data), **given})
        trials = {trial.id: trial for trial in study.trials(to_come)}
        for trial in trials.values():
            if trial != Trial(arm=trial.arm, axes=trial.axes, config=trial.config, inputs=trial.inputs):
                raise StudyError(
                    f"{study.file}: {trial.title}: an ingredient is a training run on the whole corpus, judged by STS: "
                    "leave out fraction, untrained and other tasks"
                )
        try:
            self.mixing.shares(len(trials))
        except SoupError as error:
            raise StudyError(f"{study.file}: soup: {error}") from error
        return [*trials.values()]

    def compared(self, bundle: Bundle) -> list[Score]:
        """What the bundle's manifest says, beside what was expected."""
        scores = bundle.manifest.scores or {}
        return [Score(name, scores[name], score, self.tolerance) for name, score in self.expected.items()]


def rebuild(plan: Rebuild, data: Path, corpus: Sequence[str], stream: TextIO) -> Iterator[tuple[Rebuild, Bundle]]:
    """Step by step what the plan comes after, and the plan itself: trains every ingredient that is not there yet, makes
    the soup and judges it, reporting to `stream`. What the plan comes after is taken as it is, if it was made of these
    ingredients and judged before.

    All that the end needs is read or looked at before anything is trained; STS-B dev alone chooses.

    Raises:
        StudyError, CorpusError, DataError: see `Rebuild.trials`; or the data lack a task of which a score is expected.
        LockError: another process is at work there.
        ValueError, DivergedError, InterruptedRun: see `training.run.fit`; the same call goes on.
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
                f"{step.study.file}: the scores that it expects are of another corpus (SHA-256 of the text "
                f"{step.corpus_sha256}, of this one {text}): they may be missed by more than {step.tolerance:g}",
                file=stream,
                flush=True,
            )
    with ExitStack() as held:  # to the end: what a step begins at must stay what its runs are named after
        for step in steps:
            held.enter_context(locked(FOLDER / step.study.name))
        for step in steps:
            folder = FOLDER / step.study.name
            ingredients = [str(_ingredient(trial, folder, stream)) for trial in step.trials(data, corpus)]
            made = _made_before(step, ingredients) if step is not plan else None
            if made is not None:
                print(f"{step.out}: kept from before", file=stream, flush=True)
            else:
                soup = cook(ingredients, step.mixing, selection, stream)
                made = soup.publish(step.out, sts_scores(soup.encoder, tasks, stream), step.card)
            yield step, made


def _check_sources(step: Rebuild, trials: Sequence[Trial], earlier: Collection[Path], later: Sequence[Rebuild]) -> None:
    """That every encoder is there, on the hub, or made by an earlier step."""
    to_come = {out.resolve() for out in earlier}
    makers = {one.out.resolve(): one.study.file for one in later}
    needed = {step.mixing.towards}
    for trial in trials:
        config = trial.config
        if config.teacher is None and OBJECTIVES[config.objective].imitates:
            raise StudyError(f"{step.study.file}: {trial.title}: teacher: {config.objective} learns from one: name it")
        needed |= {config.backbone, config.teacher}
    for source in sorted(needed - {None}, key=str):
        place = Path(str(source)).resolve()
        if place in makers:
            raise StudyError(f"{step.study.file}: {source}: {makers[place]} makes it, which is no earlier step")
        if place not in to_come:
            try:
                resolve(str(source))
            except SourceError as error:
                raise StudyError(f"{step.study.file}: {error}") from error


def _made_before(step: Rebuild, ingredients: Sequence[str]) -> Bundle | None:
    """Its bundle, if that is whole, of these ingredients, and came to all that is expected of it."""
    try:
        made = load(step.out)
    except BundleError:
        return None
    judged = step.expected.keys() <= (made.manifest.scores or {}).keys()
    met = judged and all(score.met for score in step.compared(made))
    return made if met and is_soup(made.manifest, ingredients, step.mixing) else None


def _ingredient(trial: Trial, folder: Path, stream: TextIO) -> Path:
    """The bundle of a run, trained now if it was not before."""
    place = folder / trial.id
    config = with_teacher(trial.config, folder / TEACHERS, stream)
    config = config.override({"out": str(place / "bundle"), "run": str(place / "record")})
    if _is_kept(config):
        print(f"{trial.title}: kept from before, {config.out}", file=stream, flush=True)
    else:
        print(f"{trial.title}: {config.out}", file=stream, flush=True)
        publish(config, run.fit(config, stream, resume=record.begun(Path(config.run))), {})
    drop_checkpoints(Path(config.run))
    return Path(config.out)


def _is_kept(config: RunConfig) -> bool:
    """Whether the bundle of the run is there, and whole.

    Of encoders, corpus and data the name of its folder has the digest, so it does not matter where they lie.
    """
    try:
        made = load(Path(config.out)).manifest.run or {}
    except BundleError:
        return False
    ours, theirs = json.loads(config.to_json()), made.get("config", {})
    return all(theirs.get(name) == value for name, value in ours.items() if name not in PATHS)


def _built(part: str, kind: type[Built], values: Any) -> Built:
    """One of a dataclass of settings, from a table of the file."""
    known = kinds(kind)
    given = {key: _checked(f"{part}: {key}", value, known[key]) for key, value in _table(part, values, known).items()}
    try:
        return kind(**given)
    except ValueError as error:
        raise ConfigError(f"{part}: {error}") from error


def _scores(values: Any) -> dict[str, float]:
    given = _table("expected", values, METRICS)
    return {key: _checked(f"expected: {key}", value, float) for key, value in given.items()}


def _table(part: str, values: Any, known: Collection[str]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ConfigError(f"{part}: expected a table, got {values!r}")
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(f"{part}: {unknown[0]}: unknown; there is {', '.join(known)}")
    return values


def _checked(key: str, value: Any, kind: Any) -> Any:
    try:
        return check(value, kind)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
