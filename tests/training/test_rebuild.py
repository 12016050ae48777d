from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import bundle
from training import cli, run
from training.interrupt import InterruptedRun
from training.objectives import OBJECTIVES
from training.rebuild import Rebuild, Score
from training.study.trial import StudyError

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]
Call = Callable[..., int]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def described(tiny_backbone: Path) -> Callable[..., Path]:
    """A file of two seeds of two steps each."""

    def describe(more: str = "") -> Path:
        base = {
            "objective": "simcse",
            "backbone": str(tiny_backbone),
            "max_steps": 2,
            "batch_size": 8,
            "eval_every": 1,
            "learning_rate": 1e-3,
            "pooling": "mean",
            "precision": "fp32",
            "device": "cpu",
        }
        described = (
            "[base]\n" + "".join(f"{key} = {value!r}\n" for key, value in base.items()) + "[grid]\nseed = [0, 1]\n"
        )
        file = Path("tiny.toml")
        file.write_text(described + more if more.startswith("[") else more + described)
        return file

    return describe


@pytest.fixture
def rebuilt(stsb_data: Path, corpus_file: Path) -> Call:
    def call(file: Path, *, data: Path = stsb_data, corpus: Path = corpus_file) -> int:
        return cli.main(["rebuild", str(file), "--data", str(data), "--corpus", str(corpus)])

    return call


def made() -> bundle.Manifest:
    return bundle.load(Path("artifacts/tiny")).manifest


def ingredients() -> list[Path]:
    return sorted(Path("runs/encoders/tiny").glob("*/bundle"))


def never(*_: object, **__: object) -> None:
    raise AssertionError("there is nothing to train")


@pytest.mark.slow
def test_an_encoder_is_rebuilt_and_held_against_what_is_expected(
    described: Callable[..., Path], rebuilt: Call, corpus_file: Path, tiny_backbone: Path, capsys: Capture
) -> None:
    soup = f'[soup]\nweights = [3, 1]\ntowards = "{tiny_backbone}"\nshare = 0.2\n'
    assert rebuilt(described(soup)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == ["artifacts/tiny", "tiny.toml expects no scores: nothing was compared"]
    assert "make promote MODEL=tiny DATA=" in out
    assert err.count("simcse on ") == 2, "two were trained"
    first = made()
    assert first.run is not None and first.scores is not None and len(ingredients()) == 2
    assert [each["share"] for each in first.run["ingredients"]] == pytest.approx([0.6, 0.2, 0.2])
    assert {Path(each["source"]) for each in first.run["ingredients"][:2]} == {*ingredients()}
    assert not Path("artifacts/default").exists() and not [*Path("runs").rglob("checkpoint*")]

    dev, test = first.scores["stsb_dev_spearman"], first.scores["STSB"]
    met = f"[expected]\nstsb_dev_spearman = {dev + 0.04}\nSTSB = {test - 0.04}\n"
    moved = Path(shutil.copy(corpus_file, "moved.txt"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "fit", never)
        assert rebuilt(described(soup + met), corpus=moved) == 0
    out, err = capsys.readouterr()
    assert err.count("kept from before") == 2 and out.count("as expected") == 2
    assert made().fingerprint == first.fingerprint

    damaged = ingredients()[1] / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    missed = f"[expected]\nstsb_dev_spearman = {dev}\nSTSB = {test + 0.06}\n"
    assert rebuilt(described(soup + missed)) == 1
    out, err = capsys.readouterr()
    assert (err.count("kept from before"), err.count("simcse on ")) == (1, 1)
    assert made().fingerprint == first.fingerprint, "the same seed, the same encoder"
    assert f"STSB {test:.2f}, {test + 0.06:.2f} expected within 0.05" in err
    assert f"stsb_dev_spearman {dev:.2f}, {dev:.2f} as expected" in out and "make promote" not in out


@pytest.mark.slow
def test_after_an_interruption_the_same_command_goes_on(
    described: Callable[..., Path], rebuilt: Call, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, begun = run.fit, []

    def second_is_stopped(*arguments: Any, **options: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 2:
            raise InterruptedRun("stopped after step 1 of 2")
        return fit(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(run, "fit", second_is_stopped)
        assert rebuilt(described()) == 130
    assert capsys.readouterr().err.endswith("stopped after step 1 of 2; the same command goes on\n")
    assert len(ingredients()) == 1 and not Path("artifacts").exists()
    assert rebuilt(described()) == 0
    assert capsys.readouterr().err.count("kept from before") == 1
    assert len(ingredients()) == 2


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_a_request_to_end_is_heard(
    described: Callable[..., Path], rebuilt: Call, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it falls: it would be the end of the process, and of all since the last checkpoint."""
    monkeypatch.setattr(run, "fit", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    assert rebuilt(described()) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command goes on\n")


@pytest.mark.parametrize(
    ("difference", "met"), [(0.0, True), (0.05, True), (-0.05, True), (0.0501, False), (-1, False)]
)
def test_the_tolerance_is_still_met(difference: float, met: bool) -> None:
    assert Score("STS12", 79.92 + difference, 79.92, 0.05).met is met


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[sop]\n", "tiny.toml: sop: unknown; a rebuild has name, about, base, grid, arm, after, excerpt, soup, exp"),
        ('after = "one.toml"\n', "tiny.toml: after: expected a list, each text, got 'one.toml'"),
        ('after = ["one.toml"]\n', "one.toml: No such file"),
        ('after = ["tiny.toml"]\n', "tiny.toml: after: it comes after itself"),
        ("excerpt = { last = 3 }\n", "tiny.toml: excerpt: last: unknown; there is first, words"),
        ("excerpt = { first = 0 }\n", "tiny.toml: excerpt: first: 0 is less than one line"),
        ("excerpt = { words = 4 }\n", "tiny.toml: excerpt: words: expected a list, each a whole number"),
        ("[soup]\nshares = [1]\n", "tiny.toml: soup: shares: unknown; there is weights, greedy, towards, share"),
        ("[soup]\ngreedy = 1\n", "tiny.toml: soup: greedy: expected true or false, got 1"),
        ("[soup]\nshare = 0.5\n", "tiny.toml: soup: share: of which encoder?"),
        ("[soup]\nweights = [1]\n", "tiny.toml: soup: weights: 1 are 1, for 2 encoders"),
        ("[expected]\nSTS11 = 1\n", "tiny.toml: expected: STS11: unknown; there is stsb_dev_spearman, STS12"),
        ('[expected]\nSTS12 = "high"\n', "tiny.toml: expected: STS12: expected a number, got 'high'"),
        ("[expected]\nSTS12 = 70.1\n", "lacks STS12, STS13, STS14, STS15, STS16, SICKR, and tiny.toml expects STS12"),
        ('[expected]\n"STS mean" = 70.1\n', "tiny.toml expects STS mean"),
        ("soup = 3\n", "tiny.toml: soup: expected a table, got 3"),
        ("tolerance = true\n", "tiny.toml: tolerance: expected a number, got True"),
        ('name = "default"\n', "tiny.toml: name: artifacts/default is promotion's; give another name"),
        ("[[arm]]\nname = 'x'\nuntrained = true\n", "tiny.toml: x: an ingredient is a training run"),
        ("[[arm]]\nname = 'x'\nfraction = 0.5\n", "tiny.toml: x, seed 0: an ingredient is a training run"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_trained(
    more: str, message: str, described: Callable[..., Path], rebuilt: Call, capsys: Capture
) -> None:
    assert rebuilt(described(more)) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert not Path("runs").exists()


def test_the_tolerance_is_the_files(described: Callable[..., Path]) -> None:
    assert Rebuild.read(described()).tolerance == 0.05
    assert Rebuild.read(described("tolerance = 0.2\n")).tolerance == 0.2


def test_the_files_that_are_shipped_can_be_carried_out(stsb_data: Path, corpus_file: Path) -> None:
    recipes = ROOT / "studies" / "recipes"
    assert "rebuild studies/recipes/default.toml " in (ROOT / "Makefile").read_text()
    plan = Rebuild.read(recipes / "default.toml")
    assert {step.study.file.resolve() for step in plan.steps} == {*recipes.glob("*.toml")}
    to_come: list[Path] = []
    for step in plan.steps:
        trials = step.trials(stsb_data, [str(corpus_file)], to_come)
        assert trials
        to_come.append(step.out)
        for trial in trials:
            OBJECTIVES[trial.config.objective].build(trial.config.params, 384)
            assert trial.config.teacher in (None, *map(str, to_come))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(StudyError, match=r"nowhere.toml: No such file"):
        Rebuild.read(Path("nowhere.toml"))


@pytest.fixture
def taught(described: Callable[..., Path]) -> Callable[[str], Path]:
    """A file of one seed that begins at the encoder of another file, and learns from it."""
    described()

    def describe(more: str = "") -> Path:
        file = Path("taught.toml")
        file.write_text(
            f"{more}\nafter = ['tiny.toml']\n[base]\nobjective = 'distillation'\n"
            "backbone = 'artifacts/tiny'\nteacher = 'artifacts/tiny'\n"
            "max_steps = 2\nbatch_size = 8\neval_every = 1\nprecision = 'fp32'\ndevice = 'cpu'\n"
        )
        return file

    return describe


@pytest.mark.slow
def test_what_it_comes_after_is_made_first(taught: Callable[..., Path], rebuilt: Call, capsys: Capture) -> None:
    file = taught("excerpt = { first = 100, words = [1, 20] }")
    assert rebuilt(file) == 0
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith("artifacts/")] == [
        "artifacts/tiny",
        "artifacts/taught",
    ]
    assert out.splitlines()[-1].startswith("to serve it: make promote MODEL=taught ")
    assert (err.count("simcse on "), err.count("distillation on ")) == (2, 1)
    manifest = bundle.load(Path("artifacts/taught")).manifest
    assert manifest.run is not None
    (only,) = manifest.run["ingredients"]
    run_of = bundle.load(Path(only["source"])).manifest.run
    assert run_of is not None and run_of["corpus"]["sentences"] <= 100
    assert Path(run_of["config"]["corpus"][0]).parent == Path("runs/encoders/excerpts")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "fit", never)
        assert rebuilt(file) == 0
    assert bundle.load(Path("artifacts/taught")).manifest.fingerprint == manifest.fingerprint


@pytest.mark.slow
def test_one_that_begins_at_another_encoder_is_another(
    described: Callable[..., Path], taught: Callable[..., Path], rebuilt: Call, capsys: Capture
) -> None:
    file = taught()
    assert rebuilt(file) == 0
    described("[expected]\nSTSB = 0\n")
    text = Path("tiny.toml").read_text()
    Path("tiny.toml").write_text(text.replace("[0, 1]", "[2]"))
    capsys.readouterr()
    assert rebuilt(file) == 1, "what it comes after is not as expected"
    out, err = capsys.readouterr()
    assert (err.count("simcse on "), err.count("distillation on ")) == (1, 1)
    assert "STSB " in err and "expected within" in err and "make promote" not in out


def test_a_fault_of_the_last_step_is_said_before_the_first(
    taught: Callable[..., Path], rebuilt: Call, capsys: Capture
) -> None:
    assert rebuilt(taught("soup = { weights = [1, 1] }")) == 2
    assert "taught.toml: soup: weights: 1, 1 are 2, for 1 encoders" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_two_steps_of_one_name(taught: Callable[..., Path], rebuilt: Call, capsys: Capture) -> None:
    assert rebuilt(taught('name = "tiny"')) == 2
    assert "taught.toml: name: 'tiny' is that of tiny.toml, too" in capsys.readouterr().err


def test_an_excerpt_is_of_a_corpus(described: Callable[..., Path], stsb_data: Path) -> None:
    plan = Rebuild.read(described("excerpt = { first = 3 }\n"))
    with pytest.raises(StudyError, match=r"tiny\.toml: excerpt: of which corpus\? name it by --corpus"):
        plan.trials(stsb_data, [])
