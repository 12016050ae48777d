"""Axes of plots, with round ticks that enclose the data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A scale from its first tick to its last."""

    label: str
    ticks: tuple[float, ...]
    names: tuple[str, ...]
    """Labels of the ticks."""
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the position of `value`, from 0 at the first tick to 1 at the last.

        Raises:
            ValueError: `value` is not positive, on a logarithmic axis.
        """
        low, high, here = (math.log(each) if self.logarithmic else each for each in (*self.ends, value))
        return (here - low) / (high - low)

    @property
    def ends(self) -> tuple[float, float]:
        """Return the first tick and the last."""
        return self.ticks[0], self.ticks[-1]


def linear(label: str, values: Iterable[float], *, from_zero: bool = False, most: int = 6) -> Axis:
    """Make an axis with at most `most` ticks at multiples of 1, 2 or 5 times a power of ten.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    low, high = _range(label, values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):  # A difference in the last bits is no range.
        margin = abs(low) / 10 if abs(low) > 1e-9 else 0.5
        low, high = (low, high + margin) if from_zero else (low - margin, high + margin)
    step, first, last = next(
        (step, first, last)
        for step in _steps(high - low, most)
        if (last := math.ceil(high / step - 1e-9)) - (first := math.floor(low / step + 1e-9)) < most
    )
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    ticks = tuple(round(i * step, digits) + 0.0 for i in range(first, last + 1))
    return Axis(label, ticks, tuple(_name(tick, digits) for tick in ticks))


def decades(label: str, values: Iterable[float], *, most: int = 6) -> Axis:
    """Make a logarithmic axis with ticks at powers of ten.

    Raises:
        ValueError: there are no values, or one is not positive and finite.
    """
    low, high = _range(label, values)
    if low <= 0:
        raise ValueError(f"{label}: {low} has no place on a logarithmic axis")
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    step = math.ceil((last - first) / (most - 1))
    exponents = range(first - (first - last) % step, last + 1, step)
    if exponents[0] > first:
        exponents = range(exponents[0] - step, last + 1, step)
    names = tuple(f"10{str(exponent).translate(SUPERSCRIPTS)}" for exponent in exponents)
    return Axis(label, tuple(10.0**exponent for exponent in exponents), names, logarithmic=True)


def sizes(label: str, values: Iterable[int]) -> Axis:
    """Make a logarithmic axis with the measured sizes as ticks.

    Raises:
        ValueError: there are fewer than two sizes, or one is not positive.
    """
    ticks = sorted(set(values))
    if len(ticks) < 2 or ticks[0] <= 0:
        raise ValueError(f"{label}: two sizes or more make an axis, not {ticks}")
    return Axis(label, tuple(map(float, ticks)), tuple(map(str, ticks)), logarithmic=True)


def _range(label: str, values: Iterable[float]) -> tuple[float, float]:
    known = [float(value) for value in values]
    if not known or not all(map(math.isfinite, known)):
        raise ValueError(f"{label}: {'a value is not finite' if known else 'no values'}")
    return min(known), max(known)


def _steps(span: float, most: int) -> Iterator[float]:
    """Yield round steps endlessly, growing from the smallest possible one."""
    exponent = math.floor(math.log10(span / most))
    while True:
        yield from (factor * 10.0**exponent for factor in (1, 2, 5))
        exponent += 1


def _name(tick: float, digits: int) -> str:
    return f"{tick:.{digits}f}".replace("-", "−")
