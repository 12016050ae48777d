"""What a frozen encoder says of a sentence is asked for once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.encoder import Encoder
from models.tokenizer import Tokens
from training import cli
from training.recall import Recall
from training.step import Step
from training.views import Teacher

TEXTS = ["a dog .", "the man can see the river", "a woman will read this book", "the dog", "a man will see ."]


@pytest.fixture
def teacher(tiny_backbone: Path) -> Teacher:
    return Teacher(Encoder.load(tiny_backbone, pooling="mean"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences a frozen encoder was given, each time that it was."""
    seen = []
    call = Teacher.__call__

    def spy(self: Teacher, tokens: Sequence[Tokens]) -> Tensor:
        seen.append(len(tokens))
        return call(self, tokens)

    monkeypatch.setattr(Teacher, "__call__", spy)
    return seen


def tokens(teacher: Teacher, *texts: str) -> Sequence[Tokens]:
    return teacher.encoder.tokenizer.encode(texts)


def test_vectors_are_those_of_the_encoder_when_they_are_new_and_when_they_are_not(
    teacher: Teacher, tmp_path: Path, asked: list[int]
) -> None:
    recall, known = Recall(teacher, tmp_path / "file"), tokens(teacher, *TEXTS)
    vectors = teacher(known)
    for order in ([0, 1, 2, 3, 4], [3, 0, 4], [2, 2, 1]):
        assert torch.equal(recall([known[i] for i in order]), vectors[order])
    assert asked == [5, 5], "itself, and once the one that recalls"


def test_only_what_is_new_is_asked_for(teacher: Teacher, tmp_path: Path, asked: list[int]) -> None:
    recall = Recall(teacher, tmp_path / "file")
    recall(tokens(teacher, *TEXTS[:2]))
    mixed = recall(tokens(teacher, TEXTS[1], *TEXTS[2:], TEXTS[2]))
    assert asked == [2, 3]
    torch.testing.assert_close(mixed, teacher(tokens(teacher, TEXTS[1], *TEXTS[2:], TEXTS[2])))


@pytest.mark.parametrize("torn", [0, 1, 40])
def test_another_process_has_what_was_kept_but_for_a_record_that_was_cut(
    teacher: Teacher, tmp_path: Path, asked: list[int], torn: int
) -> None:
    file, known = tmp_path / "file", tokens(teacher, *TEXTS)
    vectors = Recall(teacher, file)(known)
    with file.open("r+b") as whole:
        whole.truncate(file.stat().st_size - torn)
    again = Recall(teacher, file)
    for order in ([4, 3, 2, 1, 0], [4, 0]):
        torch.testing.assert_close(again([known[i] for i in order]), vectors[order])
    assert asked == ([5, 1] if torn else [5])


@pytest.fixture
def train(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Distillation from 228 sentences, 29 batches of 8 an epoch; the run's folder."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str) -> Path:
        command = ["train", "distillation", "--backbone", str(tiny_backbone), "--teacher", str(other_bundle)]
        command += ["--corpus", str(corpus_file), "--preset", "minilm", "--out", f"artifacts/{name}"]
        command += ["--set", "batch_size=8", "--set", "eval_every=10", "--set", "precision=fp32"]
        assert cli.main([*command, *options]) == 0
        return Path("runs", name)

    return run


def test_in_a_run_each_sentence_passes_once_through_teacher_and_start(
    train: Callable[..., Path], asked: list[int]
) -> None:
    folder = train("twice", "--max-steps", "58")
    assert sum(asked) == 2 * 228
    assert not list(folder.glob("*.vectors")), "nobody needs them any more"


def test_a_run_of_one_epoch_keeps_nothing(train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def there(self: Recall, teacher: Teacher, file: Path) -> None:
        raise AssertionError(f"{file} is of no use")

    monkeypatch.setattr(Recall, "__init__", there)
    train("once", "--max-steps", "29")


@pytest.mark.slow
def test_a_run_that_was_cut_in_its_second_epoch_ends_as_one_that_was_not(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    whole = train("whole", "--max-steps", "50")
    asked.clear()
    step = Step.__call__
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == 37 else step(self, *rest))
        train("cut", "--max-steps", "50")
    assert list(Path("runs/cut").glob("*.vectors"))
    cut = train("cut", "--max-steps", "50", "--resume")
    assert sum(asked) == 2 * 228, "what was kept is taken up"
    best = [sorted(folder.glob("best-*.safetensors"))[-1] for folder in (whole, cut)]
    assert best[0].name == best[1].name and best[0].read_bytes() == best[1].read_bytes()
