"""A Prometheus histogram that observes many values at once.

That of prometheus_client takes one, at three times the cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Histogram(Collector):
    """Cumulative counts of values by the upper `bounds`, in one series, or in one for each value of `label`."""

    def __init__(
        self,
        name: str,
        documentation: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
        label: str | None = None,
    ) -> None:
        self._name, self._documentation, self._bounds = name, documentation, bounds
        self._labels = [label] if label else []
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: defaultdict[str, float] = defaultdict(float)
        if not label:
            self.observe(0, times=0)  # so that the series exists from the start
        registry.register(self)

    def observe(self, value: float, *, times: int = 1, of: str = "") -> None:
        """Count `value` `times` times, in the series `of` that label."""
        self._counts[of][bisect_left(self._bounds, value)] += times
        self._sums[of] += times * value

    def observe_all(self, values: Sequence[float]) -> None:
        counts = self._counts[""]
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self._sums[""] += sum(values)

    def forget(self, of: str) -> None:
        """Delete the series of that label."""
        self._counts.pop(of, None)
        self._sums.pop(of, None)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for of, counts in self._counts.items():
            buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(counts), strict=True)]
            family.add_metric([of] if self._labels else [], buckets, self._sums[of])
        yield family
