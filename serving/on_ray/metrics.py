"""Export of a replica's metrics to Ray. Ray collects the metrics of all replicas and nodes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from ray.serve.metrics import Gauge


class Mirror:
    """Copies of a server's metrics in Ray.

    Ray adds labels for the replica, and the prefix `ray_` to each name.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}

    def update(self) -> None:
        """Copy the values of all metrics.

        Counters and histogram buckets become gauges. Prometheus's functions for counters and histograms also work on
        these gauges.
        """
        for family in self._registry.collect():
            for sample in family.samples:
                name = sample.name
                if name not in self._gauges:
                    keys = tuple(sample.labels)
                    self._gauges[name] = Gauge(name, family.documentation, tag_keys=keys)  # type: ignore[arg-type]
                self._gauges[name].set(sample.value, tags=dict(sample.labels))
