"""Progress display of a run: a bar on a terminal, otherwise plain lines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TextIO

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from training.evaluation.vectors import Encode

LINE_EVERY = 5.0
"""Seconds between plain lines."""


class Progress:
    """Progress display: steps out of `total`, loss, sentences/s, and the remaining time including evaluations."""

    def __init__(self, stream: TextIO, *, total: int, done: int = 0) -> None:
        self._stream = stream
        self._total = total
        self._done = self._done_before = done
        self._sentences = 0
        self._busy = 0.0
        self._started: float | None = None
        self._last_line = float("-inf")
        self._bar = tqdm(total=total, initial=done, unit="step", file=stream) if stream.isatty() else None

    def advance(self, loss: float, sentences: int, seconds: float) -> None:
        """Display one more step, which processed `sentences` sentences in `seconds` seconds."""
        self._done += 1
        self._sentences += sentences
        self._busy += seconds
        speed = self._sentences / self._busy
        now = time.monotonic()
        if self._started is None:
            self._started = now - seconds
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:#.4g}, {speed:.0f} sentences/s", refresh=False)
            self._bar.update()
        elif now - self._last_line >= LINE_EVERY or self._done == self._total:
            self._last_line = now
            per_step = (now - self._started) / (self._done - self._done_before)
            left = timedelta(seconds=round(per_step * (self._total - self._done)))
            self.say(f"step {self._done}/{self._total}: loss {loss:#.4g}, {speed:.0f} sentences/s, {left} left")

    def say(self, line: str) -> None:
        """Print a separate line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def say_remaining(self, evaluations: int, seconds: float) -> None:
        """Print the remaining time of the run.

        `evaluations` is the number of remaining evaluations, and each takes `seconds` seconds.
        """
        steps, per_step = self._total - self._done, self._busy / (self._done - self._done_before)
        left = timedelta(seconds=round(steps * per_step + evaluations * seconds))
        self.say(f"about {left} left: {steps} steps of {per_step:.2g} s, {evaluations} evaluations of {seconds:.2g} s")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def with_progress(encode: Encode, stream: TextIO, *, parts: int = 50) -> Encode:
    """Return `encode` with a progress display.

    The texts are sorted by length, shortest first, and encoded in up to `parts` calls of `encode`. On a terminal, the
    display is a bar, except for a single text. Otherwise, a plain line is printed every few seconds.
    """

    def visibly(texts: Sequence[str]) -> NDArray[np.float32]:
        order = np.array(sorted(range(len(texts)), key=lambda i: len(texts[i])), dtype=np.int64)
        vectors: list[NDArray[np.float32]] = []
        said = time.monotonic()
        hidden = len(texts) == 1 or not stream.isatty()
        with tqdm(total=len(texts), unit="text", file=stream, disable=hidden) as bar:
            for part in np.array_split(order, max(1, min(parts, len(order)))):
                vectors.append(encode([texts[i] for i in part]))
                bar.update(len(part))
                if bar.disable and time.monotonic() - said >= LINE_EVERY:
                    said = time.monotonic()
                    print(f"encoded {sum(map(len, vectors))} of {len(texts)} texts", file=stream, flush=True)
        return np.concatenate(vectors)[np.argsort(order)]

    return visibly
