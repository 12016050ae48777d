"""How far a run is: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TextIO

from tqdm import tqdm

LINE_EVERY = 5.0
"""Seconds between plain lines."""


class Progress:
    """Steps done out of `total`, with loss, sentences/s, and the time left, evaluations included."""

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
        """One step more, that took so many seconds over so many sentences."""
        self._done += 1
        self._sentences += sentences
        self._busy += seconds
        speed = self._sentences / self._busy
        now = time.monotonic()
        if self._started is None:
            self._started = now - seconds
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}, {speed:.0f} sentences/s", refresh=False)
            self._bar.update()
        elif now - self._last_line >= LINE_EVERY or self._done == self._total:
            self._last_line = now
            per_step = (now - self._started) / (self._done - self._done_before)
            left = timedelta(seconds=round(per_step * (self._total - self._done)))
            self.say(f"step {self._done}/{self._total}: loss {loss:.4f}, {speed:.0f} sentences/s, {left} left")

    def say(self, line: str) -> None:
        """A line of its own, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
