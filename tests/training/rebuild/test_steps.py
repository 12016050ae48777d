"""Tests of rebuilds that depend on others: their order, and refusals before any work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from models.bundle import bundle
from tests.training.rebuild.conftest import Call, Capture, Refusal, never
from tests.training.shaken import shaken
from training import run
from training.machine.interrupt import locked
from training.objectives import OBJECTIVES
from training.studies.rebuild import Rebuild

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "studies" / "recipes"
SHIPPED = sorted(RECIPES.glob("*.toml"))


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
    assert only["run"].items() <= run_of.items() and "curve" not in only["run"]
    teacher = bundle.load(Path("artifacts/tiny")).manifest
    assert (run_of["teacher"]["name"], run_of["teacher"]["fingerprint"]) == ("tiny", teacher.fingerprint)
    card = Path("artifacts/taught/README.md").read_text()
    assert f"Teacher: `tiny` (of `{teacher.backbone}`, fingerprint `{teacher.fingerprint}`)" in card
    assert Path(run_of["config"]["corpus"][0]).parent == Path("runs/encoders/excerpts")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "fit", never)
        assert rebuilt(file) == 0
    err = capsys.readouterr().err
    assert "artifacts/tiny: from an earlier run" in err
    assert "artifacts/taught: from an earlier run" not in err, "what is asked for is made and judged each time"
    assert bundle.load(Path("artifacts/taught")).manifest.fingerprint == manifest.fingerprint


@pytest.mark.slow
def test_what_it_comes_after_is_made_again_if_it_would_be_another(
    described: Callable[..., Path],
    taught: Callable[..., Path],
    rebuilt: Call,
    *,
    stsb_data: Path,
    tiny_backbone: Path,
    capsys: Capture,
) -> None:
    file, start = taught(), Path(shutil.copytree(tiny_backbone, "start"))
    unjudged = Path(shutil.copytree(stsb_data, "unjudged"))
    (unjudged / "STS" / "STSBenchmark" / "sts-test.csv").unlink()

    def kept(more: str, data: Path = stsb_data, code: int = 0) -> bool:
        described(more)
        assert rebuilt(file, data=data) == code
        return "artifacts/tiny: from an earlier run" in capsys.readouterr().err

    soup = f'[soup]\ntowards = "{start}"\nshare = {{}}\n'
    assert not kept(soup.format(0.2), unjudged)
    assert kept(soup.format(0.2), unjudged)
    expected = "tolerance = 100\n" + soup.format(0.2) + "[expected]\nSTSB = 0\n"
    assert not kept(expected), "nobody has judged it by that"
    assert kept(expected)
    assert not kept(soup.format(0.2) + "[expected]\nSTSB = 0\n", code=1), "it did not come to that"
    assert not kept(soup.format(0.3)), "more of the start goes in"
    shaken(tiny_backbone, seed=7).save(start)
    assert not kept(soup.format(0.3)), "the start is another"
    (Path("artifacts/tiny") / "model.safetensors").unlink()
    assert not kept(soup.format(0.3)), "it is not whole"
    assert kept(soup.format(0.3))


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


def test_a_fault_of_the_last_step_is_said_before_the_first(taught: Callable[..., Path], refused: Refusal) -> None:
    assert "taught.toml: soup: weights: 1, 1 are 2, for 1 encoders" in refused(taught("soup = { weights = [1, 1] }"))
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "teacher = 'artifacts/tiny'\n",
            "",
            "taught.toml: teacher: distillation needs a teacher",
        ),
        ("after = ['tiny.toml']", "", "artifacts/tiny: no such folder"),
        ("[base]", "[soup]\ntowards = 'artifacts/other'\n[base]", "artifacts/other: no such folder"),
        (
            "teacher = 'artifacts/tiny'",
            "teacher = 'nobody/nothing'",
            "taught.toml: 'nobody/nothing': not a folder, not complete",
        ),
    ],
)
def test_an_encoder_that_will_not_be_there_is_missed_before_the_first_step(
    old: str, new: str, message: str, taught: Callable[..., Path], refused: Refusal
) -> None:
    file = taught()
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    assert message in refused(file)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("after = ['first.toml', 'tiny.toml']", "first.toml: artifacts/tiny: tiny.toml makes this encoder"),
        ("teacher = 'artifacts/taught'", "taught.toml: artifacts/taught: taught.toml makes this encoder"),
    ],
)
def test_a_step_does_not_begin_at_what_an_earlier_rebuild_left(
    change: str, message: str, taught: Callable[..., Path], refused: Refusal, tiny_bundle: Path
) -> None:
    text = taught().read_text()
    for name in ("tiny", "taught"):
        shutil.copytree(tiny_bundle, Path("artifacts") / name)
    Path("first.toml").write_text(text.replace("after = ['tiny.toml']", ""))
    lines = [change if line.split(" ")[0] == change.split(" ", maxsplit=1)[0] else line for line in text.splitlines()]
    Path("taught.toml").write_text("\n".join(lines))
    assert message in refused(Path("taught.toml"))


def test_two_files_after_each_other(taught: Callable[..., Path], refused: Refusal) -> None:
    file = taught()
    Path("tiny.toml").write_text("after = ['taught.toml']\n" + Path("tiny.toml").read_text())
    assert "taught.toml: after: the recipe depends on itself" in refused(file)


def test_all_steps_are_one_process_s(taught: Callable[..., Path], refused: Refusal) -> None:
    """Lock all steps, because another process could replace the encoder from which a later step starts."""
    file = taught()
    with locked(Path("runs/encoders/taught")):
        assert "runs/encoders/taught: another process is using this folder" in refused(file)
    assert not Path("artifacts").exists()


def test_a_score_that_the_last_step_expects_and_the_data_lack(taught: Callable[..., Path], refused: Refusal) -> None:
    message = refused(taught("expected = { STS12 = 70.1 }"))
    assert "lacks STS12" in message and "taught.toml expects STS12" in message
    assert not Path("runs").exists()


def test_what_is_there_is_known_by_what_it_is_though_others_are_to_come(
    described: Callable[..., Path], stsb_data: Path, corpus_file: Path
) -> None:
    plan = Rebuild.read(described())
    alone, beside = (
        plan.trials(stsb_data, [str(corpus_file)], to_come) for to_come in ((), (Path("artifacts/other"),))
    )
    assert [trial.id for trial in alone] == [trial.id for trial in beside]
    assert "backbone" in alone[0].inputs


def test_two_steps_of_one_name(taught: Callable[..., Path], refused: Refusal) -> None:
    assert "taught.toml: name: 'tiny' is also the name in tiny.toml" in refused(taught('name = "tiny"'))


def test_the_default_is_shipped() -> None:
    assert "rebuild studies/recipes/$(or $(RECIPE),default).toml " in (ROOT / "Makefile").read_text()
    assert RECIPES / "default.toml" in SHIPPED


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_what_is_shipped_can_be_carried_out(file: Path, stsb_data: Path, corpus_file: Path) -> None:
    earlier: list[Path] = []
    for step in Rebuild.read(file).steps:
        assert step.expected
        trials = step.trials(stsb_data, [str(corpus_file)], earlier)
        assert trials
        for trial in trials:
            recipe = OBJECTIVES[trial.config.objective]
            recipe.build(trial.config.params, 384)
            assert (trial.config.teacher is not None) == recipe.needs_named_teacher
            for source in (trial.config.backbone, trial.config.teacher or "minilm"):
                assert Path(source) in earlier or not source.startswith("artifacts/")
        earlier.append(step.out)
