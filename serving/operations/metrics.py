"""Prometheus metrics of the server: those of text-embeddings-inference (`te_*`), and additional metrics.

docs/metrics.md lists the metrics. Only the thread of the event loop reads and writes them.
"""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from time import perf_counter

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from models.bundle.bundle import Manifest
from serving.errors import Kind, ServiceError
from serving.operations.bounds import NAMED_CORPORA

_SECONDS = tuple(0.000_5 * 1.75**i for i in range(20))
_POWERS = tuple(float(2**i) for i in range(15))
_SHARES = (0.01, 0.02, 0.05, *(i / 10 for i in range(1, 11)))
_STAGES = {
    "duration": "Seconds to a result",
    "tokenization_duration": "Seconds to tokenise",
    "queue_duration": "Seconds until the engine took it up",
    "inference_duration": "Seconds from then to the last vector",
}
_FAILURES: Mapping[Kind, str] = {"Tokenizer": "tokenization", "Backend": "inference", "Empty": "validation"}
"""Label values that text-embeddings-inference uses for kinds of errors. Kinds that are not listed keep their own
name."""
OTHERS = "_others"
"""Label of all corpora without a label of their own. It is not a legal corpus name."""


class Histogram(Collector):
    """Prometheus histogram with the upper `bounds`: one series, or one series for each value of `label`.

    `observe` takes many equal values in one call. The histogram of prometheus_client observes one value per call, at
    three times the cost.
    """

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
            self.observe(0, times=0)  # creates the series before the first observation
        registry.register(self)

    def observe(self, value: float, *, times: int = 1, of: str = "") -> None:
        """Add `times` observations of `value` to the series with the label `of`."""
        self._counts[of][bisect_left(self._bounds, value)] += times
        self._sums[of] += times * value

    def observe_all(self, values: Sequence[float]) -> None:
        counts = self._counts[""]
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self._sums[""] += sum(values)

    def forget(self, of: str) -> None:
        """Delete the series with the label `of`."""
        self._counts.pop(of, None)
        self._sums.pop(of, None)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for of, counts in self._counts.items():
            buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(counts), strict=True)]
            family.add_metric([of] if self._labels else [], buckets, self._sums[of])
        yield family


disable_created_metrics()  # type: ignore[no-untyped-call] # one more series for each counter, which nobody asks for


@dataclass(frozen=True)
class Timing:
    """Durations of the stages of a request, in seconds."""

    tokenization: float
    queue: float
    """Seconds until the first text of the request reached the engine."""
    inference: float
    """Seconds from the time at which the first text reached the engine until the last text was embedded, including
    waits in between."""
    total: float

    @classmethod
    def between(cls, began: float, tokenized: float, begun: float, done: float) -> Timing:
        """Return the durations between four times: arrival, end of tokenisation, start of inference and end."""
        return cls(tokenized - began, begun - tokenized, done - begun, done - began)


class Labels:
    """Corpora with a label of their own.

    The first `limit` corpora get a label, and a deleted corpus frees its label.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._named: set[str] = set()

    def of(self, corpus: str) -> str:
        """Return the label of a corpus: its name, or `OTHERS` if all labels are taken."""
        if corpus not in self._named and len(self._named) < self._limit:
            self._named.add(corpus)
        return corpus if corpus in self._named else OTHERS

    def keep(self, corpora: Collection[str]) -> set[str]:
        """Remove the labels of corpora that are not in `corpora`. Return these labels."""
        gone = self._named.difference(corpora)
        self._named -= gone
        return gone


class Metrics:
    """Metrics of one server, in one registry.

    TEI's counters have no suffix `_total`, but prometheus_client adds this suffix to every counter. TEI's counters are
    therefore exported as gauges that only increase.

    Only `corpora` corpora have a label of their own. Otherwise callers who create corpora could fill Prometheus.
    """

    def __init__(self, corpora: int = NAMED_CORPORA) -> None:
        self.registry = CollectorRegistry()
        to = self.registry
        self._labels = Labels(corpora)
        requests = Gauge("te_request_count", "Requests for inference", ["method"], registry=to)
        successes = Gauge("te_request_success", "Requests answered with a result", ["method"], registry=to)
        self._requests = {method: requests.labels(method) for method in ("single", "batch")}
        self._successes = {method: successes.labels(method) for method in self._requests}
        self._failure = Gauge(
            "te_request_failure", "Requests answered with an error, by its kind", ["err"], registry=to
        )
        self._request_seconds = [Histogram(f"te_request_{name}", says, _SECONDS, to) for name, says in _STAGES.items()]
        self._text_seconds = [
            Histogram(f"te_embed_{name}", f"{says}, of its request for each text", _SECONDS, to)
            for name, says in _STAGES.items()
        ]
        self._input_length = Histogram("te_request_input_length", "Tokens of each text", _POWERS, to)
        self._texts = Gauge("te_embed_count", "Texts to embed", registry=to)
        self._embedded = Gauge("te_embed_success", "Texts embedded", registry=to)
        self._truncated = Counter("isosphere_truncated_inputs", "Texts that were cut", registry=to)
        cache = Counter("isosphere_cache", "Texts looked up among kept vectors", ["result"], registry=to)
        self._hits, self._misses = cache.labels("hit"), cache.labels("miss")
        self._queue_size = Gauge("te_queue_size", "Texts waiting", registry=to)
        self._queued_tokens = Gauge("isosphere_queued_tokens", "Tokens admitted and not yet embedded", registry=to)
        self._waiting_tokens = Gauge("isosphere_waiting_tokens", "Tokens in no batch yet", ["lane"], registry=to)
        self._batch_size = Histogram("te_batch_next_size", "Texts in a batch", _POWERS, to)
        self._batch_tokens = Histogram("te_batch_next_tokens", "Tokens that a batch computes", _POWERS, to)
        self._fill = Histogram("isosphere_batch_fill_ratio", "Of a batch's budget, the part it computes", _SHARES, to)
        self._useful = Counter("isosphere_useful_tokens", "Tokens of texts that were computed", registry=to)
        self._padded = Counter("isosphere_padded_tokens", "Tokens computed, padding and all", registry=to)
        self._searches = Histogram(
            "isosphere_search_duration_seconds", "Seconds to search, once there are vectors", _SECONDS, to, "corpus"
        )
        self._corpora = Gauge("isosphere_corpora", "Corpora", registry=to)
        self._vectors = Gauge("isosphere_index_vectors", "Vectors in the index of a corpus", ["corpus"], registry=to)
        self._bytes = Gauge("isosphere_index_bytes", "Bytes in memory of the index", ["corpus"], registry=to)
        self._model = Gauge(
            "isosphere_model", "1 for each one served", ["name", "fingerprint", "engine", "precision"], registry=to
        )
        self.reloads = Counter("isosphere_reloads", "Attempts to serve another bundle", ["outcome"], registry=to)
        self._ready = Gauge("isosphere_ready", "1 while requests are served", registry=to)
        build = Info("isosphere_build", "1 for the version that runs", registry=to)
        build.info({"version": version("isosphere"), "python": platform.python_version()})
        ProcessCollector(registry=to)

    @contextmanager
    def request(self, texts: int) -> Iterator[None]:
        """Count a request to embed `texts` texts. At the end of the block, count its result."""
        method = "single" if texts == 1 else "batch"
        self._requests[method].inc()
        self._texts.inc(texts)
        try:
            yield
        except BaseException as error:
            self._failure.labels(_failure(error)).inc()
            raise
        self._successes[method].inc()
        self._embedded.inc(texts)

    def lengths(self, lengths: Sequence[int], truncated: int) -> None:
        """Count the tokens of each text of a request, and the texts that were truncated."""
        self._input_length.observe_all(lengths)
        self._truncated.inc(truncated)

    def timing(self, timing: Timing, texts: int) -> None:
        """Observe the stages of a request with `texts` texts."""
        stages = (timing.total, timing.tokenization, timing.queue, timing.inference)
        for seconds, of_request, of_text in zip(stages, self._request_seconds, self._text_seconds, strict=True):
            of_request.observe(seconds)
            of_text.observe(seconds, times=texts)

    def cached(self, hits: int, misses: int) -> None:
        """Count cache hits and misses.

        Hits are texts that were cached or already running. Misses are texts sent to the engine.
        """
        self._hits.inc(hits)
        self._misses.inc(misses)

    def batch(self, lengths: Sequence[int], *, length_step: int, max_length: int, max_tokens: int) -> None:
        """Observe a batch of texts of `lengths` tokens.

        The engine pads to a multiple of `length_step`, up to `max_length`.
        """
        longest = max(lengths)
        padded = len(lengths) * (longest + min(-longest % length_step, max(max_length - longest, 0)))
        self._batch_size.observe(len(lengths))
        self._batch_tokens.observe(padded)
        self._fill.observe(padded / max_tokens)
        self._useful.inc(sum(lengths))
        self._padded.inc(padded)

    @contextmanager
    def search(self, corpus: str) -> Iterator[None]:
        """Observe the duration of a search. A failed search is not observed, because its corpus may not exist."""
        began = perf_counter()
        yield
        self._searches.observe(perf_counter() - began, of=self._labels.of(corpus))

    def waiting(self, texts: int, tokens: int, by_lane: Mapping[str, int]) -> None:
        """Set the size of the queue.

        `tokens` includes running batches. `texts` and `by_lane` include only waiting texts and tokens. `by_lane` has
        the tokens of interactive requests and of bulk work.
        """
        self._queue_size.set(texts)
        self._queued_tokens.set(tokens)
        for lane, waiting in by_lane.items():
            self._waiting_tokens.labels(lane).set(waiting)

    def serving(self, ready: bool, encoders: Iterable[tuple[Manifest, str, str]]) -> None:
        """Set the served models with their runtimes and precisions.

        Until a model is loaded, its runtime and precision are empty strings.
        """
        self._ready.set(ready)
        self._model.clear()
        for manifest, runtime, precision in encoders:
            self._model.labels(manifest.name, manifest.fingerprint, runtime, precision).set(1)

    def indexes(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Set the number of vectors and the bytes of each corpus's index. Remove the series of deleted corpora."""
        for gone in self._labels.keep(sizes):
            self._searches.forget(gone)
        self._corpora.set(len(sizes))
        self._vectors.clear()
        self._bytes.clear()
        for corpus, (vectors, bytes) in sizes.items():
            label = self._labels.of(corpus)
            self._vectors.labels(label).inc(vectors)
            self._bytes.labels(label).inc(bytes)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def _failure(error: BaseException) -> str:
    if isinstance(error, ServiceError):
        return _FAILURES.get(error.kind, error.kind.lower())
    return "dropped" if isinstance(error, asyncio.CancelledError) else "internal"
