"""Tests of the cache of a frozen encoder's vectors: each sentence is encoded once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from models.bundle.tokenizer import Tokens
from models.encoder.encoder import Encoder
from training import cli
from training.checkpoints.checkpoint import CHECKPOINT
from training.encoding.views import Teacher, TeacherCache
from training.step import Step

TEXTS = ["a dog .", "the man can see the river", "a woman will read this book", "the dog", "a man will see ."]


@pytest.fixture
def teacher(tiny_backbone: Path) -> Teacher:
    return Teacher(Encoder.load(tiny_backbone, pooling="mean"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of sentences in each call of a frozen encoder."""
    seen = []
    call = Teacher.__call__

    def spy(self: Teacher, tokens: Sequence[Tokens]) -> Tensor:
        seen.append(len(tokens))
        return call(self, tokens)

    monkeypatch.setattr(Teacher, "__call__", spy)
    return seen


def tokens(teacher: Teacher, *texts: str) -> Sequence[Tokens]:
    return teacher.encoder.tokenizer.encode(texts)


def recalling(teacher: Teacher, folder: Path, count: int = 0) -> TeacherCache:
    """Return a cache as in a run whose checkpoint has `count` sentences."""
    return TeacherCache(teacher, folder, "teacher", {file.name: count for file in folder.glob("*")})


def test_vectors_are_those_of_the_encoder_when_they_are_new_and_when_they_are_not(
    teacher: Teacher, tmp_path: Path, asked: list[int]
) -> None:
    recall, known = recalling(teacher, tmp_path), tokens(teacher, *TEXTS)
    vectors = teacher(known)
    for order in ([0, 1, 2, 3, 4], [3, 0, 4], [2, 2, 1]):
        assert torch.equal(recall([known[i] for i in order]), vectors[order])
    assert asked == [5, 5], "itself, and once the one that recalls"


def test_only_what_is_new_is_asked_for(teacher: Teacher, tmp_path: Path, asked: list[int]) -> None:
    recall = recalling(teacher, tmp_path)
    recall(tokens(teacher, *TEXTS[:2]))
    mixed = recall(tokens(teacher, TEXTS[1], *TEXTS[2:], TEXTS[2]))
    assert asked == [2, 3]
    torch.testing.assert_close(mixed, teacher(tokens(teacher, TEXTS[1], *TEXTS[2:], TEXTS[2])))


@pytest.mark.parametrize("damage", ["", "more bytes", "fewer", "hardly any", "no file"])
@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_run_that_is_taken_up_has_what_its_checkpoint_knows_of(
    teacher: Teacher, tmp_path: Path, asked: list[int], count: int, damage: str
) -> None:
    known = tokens(teacher, *TEXTS)
    vectors = recalling(teacher, tmp_path)(known)
    (file,) = tmp_path.iterdir()
    size = file.stat().st_size // 5
    if damage == "no file":
        file.unlink()
    elif damage:  # A write that was cut by a power loss, or that a crash left after the last checkpoint.
        os.truncate(file, {"more bytes": 5 * size + 40, "fewer": 5 * size - 40, "hardly any": 40}[damage])
    left = {"fewer": 4, "hardly any": 0, "no file": 0}.get(damage, 5)
    again = recalling(teacher, tmp_path, count)
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [4, 0]):
        torch.testing.assert_close(again([known[i] for i in order]), vectors[order])
    new = 5 - min(count, left)
    assert asked == [5, new] if new else asked == [5]
    assert file.stat().st_size == 5 * size


def test_what_another_encoder_said_is_nobodys(tiny_backbone: Path, teacher: Teacher, tmp_path: Path) -> None:
    known = tokens(teacher, *TEXTS)
    others = Teacher(Encoder.load(tiny_backbone, pooling="cls")), Teacher(Encoder.load(tiny_backbone, pooling="mean"))
    with torch.no_grad():
        next(others[1].encoder.parameters()).mul_(1.5)
    recalling(teacher, tmp_path)(known)
    for other in others:
        torch.testing.assert_close(recalling(other, tmp_path, 5)(known), other(known))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk_has_its_room_back_and_the_run_goes_on(
    teacher: Teacher, tmp_path: Path, asked: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    recall, known = recalling(teacher, tmp_path), tokens(teacher, *TEXTS)
    recall(known[:1])
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.symlink_to("/dev/full")
    assert torch.equal(recall(known), teacher(known))
    assert not list(tmp_path.iterdir()) and f"{file}: No space left on device; the cache is off" in caplog.text
    asked.clear()
    for _ in range(2):
        recall(known[1:])
    assert asked == [4, 4]


def test_a_file_that_is_not_to_be_written_is_named(teacher: Teacher, tmp_path: Path) -> None:
    recall = recalling(teacher, tmp_path / "gone")
    with pytest.raises(FileNotFoundError) as raised:
        recall(tokens(teacher, *TEXTS))
    assert Path(raised.value.filename).parent == tmp_path / "gone"


@pytest.fixture
def train(
    tiny_backbone: Path, other_bundle: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Return a function that distils from 228 sentences, in 29 batches of 8 per epoch, and returns the run's folder."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *options: str) -> Path:
        command = ["train", "distillation", "--backbone", str(tiny_backbone), "--teacher", str(other_bundle)]
        command += ["--corpus", str(corpus_file), "--preset", "minilm", "--out", f"artifacts/{name}"]
        command += ["--set", "batch_size=8", "--set", "eval_every=10", "--set", "precision=fp32"]
        assert cli.main([*command, *options]) == 0
        return Path("runs", name)

    return run


@pytest.mark.slow
def test_in_a_run_each_sentence_passes_once_through_teacher_and_start(
    train: Callable[..., Path], asked: list[int]
) -> None:
    folder = train("twice", "--max-steps", "58")
    assert sum(asked) == 2 * 228
    assert not list(folder.glob("*.vectors")), "nobody needs them any more"


@pytest.mark.slow
def test_a_run_of_one_epoch_keeps_nothing(train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def there(self: TeacherCache, teacher: Teacher, folder: Path, *rest: object) -> None:
        raise AssertionError(f"{folder}: nothing has to be kept in it")

    monkeypatch.setattr(TeacherCache, "__init__", there)
    train("once", "--max-steps", "29")


@pytest.mark.slow
def test_a_checkpoint_counts_what_is_on_the_disk_for_good(
    train: Callable[..., Path], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.encoding.views.fsync", lambda _: told.append("vectors"))
    train("settled", "--max-steps", "30")
    assert told == ["vectors", "vectors", "checkpoint"] * 3, "of teacher and start"


@pytest.mark.slow
@pytest.mark.parametrize(("ended", "asked_again"), [(24, 4 * 8), (37, 0)], ids=["first epoch", "second"])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, asked: list[int], ended: int, asked_again: int
) -> None:
    whole = train("whole", "--max-steps", "50")
    asked.clear()
    step = Step.__call__
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(Step, "__call__", lambda self, *rest: 1 / 0 if self._state.step == ended else step(self, *rest))
        train("cut", "--max-steps", "50")
    cut = train("cut", "--max-steps", "50", "--resume")
    assert sum(asked) == 2 * (228 + asked_again), "of teacher and start"
    terms, states = [], []
    for folder in (whole, cut):
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        terms.append([(line["teacher"], line["start"]) for line in lines if "loss" in line])
        states.append(load_file(folder / CHECKPOINT))
    assert len(terms[0]) == 50 and terms[0] == terms[1]
    assert states[0].keys() == states[1].keys()
    assert [name for name, tensor in states[0].items() if not torch.equal(tensor, states[1][name])] == []
