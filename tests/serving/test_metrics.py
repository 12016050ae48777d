"""Our histogram of many values at once is prometheus_client's own, value for value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from serving.metrics import Lengths


@given(st.lists(st.lists(st.integers(0, 40_000) | st.sampled_from([2**i for i in range(15)]), max_size=20), max_size=5))
def test_lengths_are_counted_as_prometheus_counts_them(requests: list[list[int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    lengths = Lengths("tokens", "Tokens of each text", ours)
    histogram = Histogram("tokens", "Tokens of each text", buckets=[float(2**i) for i in range(15)], registry=theirs)
    for request in requests:
        lengths.observe(request)
        for one in request:
            histogram.observe(one)
    expected = [line for line in generate_latest(theirs).splitlines() if b"_created" not in line]
    assert generate_latest(ours).splitlines() == expected
