from __future__ import annotations

import gzip
import hashlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models.bundle import bundle
from tests.training.rebuild.conftest import Call, Capture, never
from training import run
from training.machine.interrupt import InterruptedRun
from training.studies.rebuild import Rebuild, Score
from training.studies.trial import StudyError


def made() -> bundle.Manifest:
    return bundle.load(Path("artifacts/tiny")).manifest


def ingredients() -> list[Path]:
    return sorted(Path("runs/encoders/tiny").glob("*/bundle"))


@pytest.mark.slow
def test_an_encoder_is_rebuilt_and_held_against_what_is_expected(
    described: Callable[..., Path], rebuilt: Call, corpus_file: Path, tiny_backbone: Path, capsys: Capture
) -> None:
    soup = f'[soup]\nweights = [3, 1]\ntowards = "{tiny_backbone}"\nshare = 0.2\n'
    assert rebuilt(described(soup)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "artifacts/tiny",
        "tiny.toml contains no expected scores, so no scores were compared",
    ]
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
    assert err.count("from an earlier run") == 2 and out.count("as expected") == 2 and "another corpus" not in err
    assert made().fingerprint == first.fingerprint

    damaged = ingredients()[1] / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    missed = f"[expected]\nstsb_dev_spearman = {dev}\nSTSB = {test + 0.06}\n"
    assert rebuilt(described(soup + missed)) == 1
    out, err = capsys.readouterr()
    assert (err.count("from an earlier run"), err.count("simcse on ")) == (1, 1)
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
    assert capsys.readouterr().err.endswith("stopped after step 1 of 2; the same command continues\n")
    assert len(ingredients()) == 1 and not Path("artifacts").exists()
    assert rebuilt(described()) == 0
    assert capsys.readouterr().err.count("from an earlier run") == 1
    assert len(ingredients()) == 2


@pytest.mark.usefixtures("listening_to_ctrl_c")
def test_a_request_to_end_is_heard(
    described: Callable[..., Path], rebuilt: Call, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it falls: it would be the end of the process, and of all since the last checkpoint."""
    monkeypatch.setattr(run, "fit", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    assert rebuilt(described()) == 130
    assert capsys.readouterr().err.endswith("interrupted; the same command continues\n")


@pytest.mark.parametrize(
    ("difference", "met"), [(0.0, True), (0.05, True), (-0.05, True), (0.0501, False), (-1, False)]
)
def test_the_tolerance_is_still_met(difference: float, met: bool) -> None:
    assert Score("STS12", 79.92 + difference, 79.92, 0.05).met is met


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("[sop]\n", "tiny.toml: sop: unknown; a rebuild has name, about, base, grid, arm, after, excerpt, soup, exp"),
        ('after = "one.toml"\n', "tiny.toml: after: expected a list whose elements are text, got 'one.toml'"),
        ('after = ["one.toml"]\n', "one.toml: No such file"),
        ('after = ["tiny.toml"]\n', "tiny.toml: after: the recipe depends on itself"),
        ("excerpt = { last = 3 }\n", "tiny.toml: excerpt: last: unknown; there is first, words"),
        ("excerpt = { first = 0 }\n", "tiny.toml: excerpt: first: 0 is less than one line"),
        ("excerpt = { words = 4 }\n", "tiny.toml: excerpt: words: expected a list whose elements are a whole number"),
        ("[soup]\nshares = [1]\n", "tiny.toml: soup: shares: unknown; there is weights, greedy, towards, share"),
        ("[soup]\ngreedy = 1\n", "tiny.toml: soup: greedy: expected true or false, got 1"),
        ("[soup]\nshare = 0.5\n", "tiny.toml: soup: share: needs the initial encoder"),
        ("[soup]\nweights = [1]\n", "tiny.toml: soup: weights: 1 are 1, for 2 encoders"),
        ("[expected]\nSTS11 = 1\n", "tiny.toml: expected: STS11: unknown; there is stsb_dev_spearman, STS12"),
        ('[expected]\nSTS12 = "high"\n', "tiny.toml: expected: STS12: expected a number, got 'high'"),
        ("[expected]\nSTS12 = 70.1\n", "lacks STS12, STS13, STS14, STS15, STS16, SICKR, and tiny.toml expects STS12"),
        ('[expected]\n"STS mean" = 70.1\n', "tiny.toml expects STS mean"),
        ("soup = 3\n", "tiny.toml: soup: expected a table, got 3"),
        ("tolerance = true\n", "tiny.toml: tolerance: expected a number, got True"),
        ('name = "default"\n', "tiny.toml: name: artifacts/default is reserved for promotion; choose another name"),
        ("[[arm]]\nname = 'x'\nuntrained = true\n", "tiny.toml: x: an ingredient must be a training run"),
        ("[[arm]]\nname = 'x'\nfraction = 0.5\n", "tiny.toml: x, seed 0: an ingredient must be a training run"),
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


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(StudyError, match=r"nowhere.toml: No such file"):
        Rebuild.read(Path("nowhere.toml"))


@pytest.mark.slow
def test_scores_of_another_corpus_are_said_to_be(
    described: Callable[..., Path], rebuilt: Call, corpus_file: Path, capsys: Capture
) -> None:
    """Before anything is trained; what it is packed in makes no other corpus."""
    known = hashlib.sha256(corpus_file.read_bytes()).hexdigest()
    packed = Path("packed.txt.gz")
    packed.write_bytes(gzip.compress(corpus_file.read_bytes()))
    file = described(
        f"corpus_sha256 = '{known}'\nlimits = ['Small.']\ntolerance = 200.0\nexpected = {{ STSB = 0.0 }}\n"
    )
    assert rebuilt(file, corpus=packed) == 0
    assert "another corpus" not in capsys.readouterr().err
    assert "- Small.\n" in Path("artifacts/tiny/README.md").read_text()

    text = corpus_file.read_text() + "One more.\n"
    Path("longer.txt").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "fit", never)
        with pytest.raises(AssertionError, match="there is nothing to train"):
            rebuilt(file, corpus=Path("longer.txt"))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "another corpus" in line]
    assert known in line and hashlib.sha256(text.encode()).hexdigest() in line


def test_an_excerpt_is_of_a_corpus(described: Callable[..., Path], stsb_data: Path) -> None:
    plan = Rebuild.read(described("excerpt = { first = 3 }\n"))
    with pytest.raises(StudyError, match=r"tiny\.toml: excerpt: needs a corpus: name it with --corpus"):
        plan.trials(stsb_data, [])
