from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from training.checkpoints.progress import Progress, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 106.0, 107.0])
    monkeypatch.setattr("training.checkpoints.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    shown = Progress(stream, total=14, done=10)
    shown.advance(1.0, sentences=64, seconds=1.0)
    shown.advance(0.5, sentences=64, seconds=1.0)
    shown.advance(0.25, sentences=64, seconds=1.0)
    shown.advance(0.125, sentences=64, seconds=2.0)
    shown.close()
    assert stream.getvalue().splitlines() == [
        "step 11/14: loss 1.000, 64 sentences/s, 0:00:03 left",
        "step 13/14: loss 0.2500, 64 sentences/s, 0:00:02 left",  # No line after two seconds, one line after six.
        "step 14/14: loss 0.1250, 51 sentences/s, 0:00:00 left",
    ]


def test_the_remaining_time_is_that_of_steps_and_of_evaluations() -> None:
    stream = io.StringIO()
    shown = Progress(stream, total=93, done=10)
    for _ in range(3):
        shown.advance(1.0, sentences=64, seconds=2.0)
    shown.say_remaining(4, 15.0)
    assert "0:03:40 left: 80 steps of 2 s, 4 evaluations of 15 s" in stream.getvalue()


def test_a_bar_on_a_terminal() -> None:
    terminal = Terminal()
    shown = Progress(terminal, total=4)
    for _ in range(4):
        shown.advance(0.5, sentences=8, seconds=0.1)
    shown.say("a line")
    shown.close()
    assert "4/4" in terminal.getvalue() and "loss 0.5000, 80 sentences/s" in terminal.getvalue()
    assert "a line\n" in terminal.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_encoding_in_parts_gives_every_text_its_own_vector(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def lengths(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    monkeypatch.setattr("training.checkpoints.progress.LINE_EVERY", 0.0)
    texts = ["x" * (7 * i % 11) for i in range(23)]
    stream = Terminal() if terminal else io.StringIO()
    np.testing.assert_array_equal(with_progress(lengths, stream, parts=4)(texts), lengths(texts))
    assert ("23/23" if terminal else "encoded 23 of 23 texts") in stream.getvalue()


def test_a_single_text_leaves_no_bar_on_a_terminal() -> None:
    terminal = Terminal()
    one = with_progress(lambda texts: np.ones((len(texts), 1), dtype=np.float32), terminal)
    assert one(["one"]).tolist() == [[1]] and not terminal.getvalue()
