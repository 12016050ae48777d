"""Prometheus metrics of the server: the metrics of text-embeddings-inference (`te_*`), and additional metrics.

docs/metrics.md lists the metrics. Only the thread of the event loop reads and writes them.
"""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from serving.errors import Kind, Overloaded, ServiceError
from serving.operations.bounds import NAMED_CORPORA

_SECONDS = tuple(0.000_5 * 1.75**i for i in range(20))
_POWERS = tuple(float(2**i) for i in range(15))
_SHARES = (0.01, 0.02, 0.05, *(i / 10 for i in range(1, 11)))
_STAGES = {
    "duration": "Seconds until the result of a request",
    "tokenization_duration": "Seconds to tokenise a request",
    "queue_duration": "Seconds until the engine started with a request",
    "inference_duration": "Seconds from the engine's start with a request to the last vector",
}
_FAILURES: Mapping[Kind, str] = {"Tokenizer": "tokenization", "Backend": "inference", "Empty": "validation"}
"""Label values that text-embeddings-inference uses for kinds of errors. Other kinds keep their own names."""
OTHERS = "_others"
"""Label for all corpora that have no label of their own. It is not a valid corpus name."""


class Histogram(Collector):
    """Prometheus histogram whose buckets have the upper bounds `bounds`.

    It has a single series if `label` is None, else a series for each value of the label.

    `observe` takes many equal values in one call. The histogram of prometheus_client takes one value per call, which
    costs three times as much.
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
            self.observe(0, times=0)  # create the series before its first observation
        registry.register(self)

    def observe(self, value: float, *, times: int = 1, of: str = "") -> None:
        """Add `times` observations of `value` to the series with the label value `of`."""
        self._counts[of][bisect_left(self._bounds, value)] += times
        self._sums[of] += times * value

    def observe_all(self, values: Sequence[float]) -> None:
        counts = self._counts[""]
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        self._sums[""] += sum(values)

    def forget(self, of: str) -> None:
        """Delete the series with the label value `of`."""
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
    """Duration of each stage of a request, in seconds."""

    tokenization: float
    queue: float
    """Seconds from the end of tokenisation until the engine started with the first text of the request."""
    inference: float
    """Seconds from the start of the first text until the end of the last text, including pauses between them."""
    total: float


class Metrics:
    """Metrics of one server, in one registry.

    The counters of text-embeddings-inference (TEI) have no suffix `_total`, but prometheus_client adds this suffix to
    every counter. TEI's counters are therefore exported as gauges that only increase.

    At most `corpora` corpora have their own label, and the rest share the label `OTHERS`. Without this limit, callers
    who create many corpora could fill Prometheus. When a corpus is deleted, another corpus can get a label of its own.
    """

    def __init__(self, corpora: int = NAMED_CORPORA) -> None:
        self.registry = CollectorRegistry()
        to = self.registry
        self._most_labels = corpora
        self._labelled: set[str] = set()
        """Corpora that have their own label."""
        requests = Gauge("te_request_count", "Requests for inference", ["method"], registry=to)
        successes = Gauge("te_request_success", "Successful requests", ["method"], registry=to)
        self._requests = {method: requests.labels(method) for method in ("single", "batch")}
        self._successes = {method: successes.labels(method) for method in self._requests}
        self._failure = Gauge("te_request_failure", "Failed requests, by kind of error", ["err"], registry=to)
        self._request_seconds = [Histogram(f"te_request_{name}", says, _SECONDS, to) for name, says in _STAGES.items()]
        self._text_seconds = [
            Histogram(f"te_embed_{name}", f"{says}, counted once for each text", _SECONDS, to)
            for name, says in _STAGES.items()
        ]
        self._input_length = Histogram("te_request_input_length", "Tokens of each text", _POWERS, to)
        self._texts = Gauge("te_embed_count", "Texts in requests", registry=to)
        self._embedded = Gauge("te_embed_success", "Texts embedded", registry=to)
        self._truncated = Counter("isosphere_truncated_inputs", "Texts that were truncated", registry=to)
        cache = Counter("isosphere_cache", "Texts looked up in the vector cache", ["result"], registry=to)
        self._hits, self._misses = cache.labels("hit"), cache.labels("miss")
        self._queue_size = Gauge("te_queue_size", "Texts waiting", registry=to)
        self._queued_tokens = Gauge("isosphere_queued_tokens", "Admitted tokens that are not embedded yet", registry=to)
        self._waiting_tokens = Gauge("isosphere_waiting_tokens", "Tokens that wait for a batch", ["lane"], registry=to)
        self._batch_size = Histogram("te_batch_next_size", "Texts in a batch", _POWERS, to)
        self._batch_tokens = Histogram("te_batch_next_tokens", "Tokens in a batch, including padding", _POWERS, to)
        self._fill = Histogram(
            "isosphere_batch_fill_ratio", "Fraction of the token budget that a batch uses", _SHARES, to
        )
        self._useful = Counter("isosphere_useful_tokens", "Computed tokens, without padding", registry=to)
        self._padded = Counter("isosphere_padded_tokens", "Computed tokens, including padding", registry=to)
        self._searches = Histogram(
            "isosphere_search_duration_seconds",
            "Seconds to search, without embedding the query",
            _SECONDS,
            to,
            "corpus",
        )
        self._corpora = Gauge("isosphere_corpora", "Corpora", registry=to)
        self._vectors = Gauge("isosphere_index_vectors", "Vectors in the index of a corpus", ["corpus"], registry=to)
        self._bytes = Gauge("isosphere_index_bytes", "Bytes of the index in memory", ["corpus"], registry=to)
        self._model = Gauge(
            "isosphere_model", "1 for each served model", ["name", "fingerprint", "engine", "precision"], registry=to
        )
        self.reloads = Counter(
            "isosphere_reloads", "Attempts to change the served bundles, by result", ["outcome"], registry=to
        )
        self._ready = Gauge("isosphere_ready", "1 while the server is ready for requests", registry=to)
        build = Info("isosphere_build", "1 for the running version of the server", registry=to)
        build.info({"version": version("isosphere"), "python": platform.python_version()})
        ProcessCollector(registry=to)

    @contextmanager
    def request(self, texts: int, *, retried: bool = False) -> Iterator[None]:
        """Count a request to embed `texts` texts. At the end of the `with` block, also count its success or failure.

        With `retried`, the caller retries the request until the server is no longer overloaded. Attempts that end with
        `Overloaded` are then not counted.
        """
        method = "single" if texts == 1 else "batch"
        if not retried:
            self._begun(method, texts)
        try:
            yield
        except BaseException as error:
            if retried and isinstance(error, Overloaded):
                raise
            if retried:
                self._begun(method, texts)
            self._failure.labels(_failure(error)).inc()
            raise
        if retried:
            self._begun(method, texts)
        self._successes[method].inc()
        self._embedded.inc(texts)

    def _begun(self, method: str, texts: int) -> None:
        self._requests[method].inc()
        self._texts.inc(texts)

    def lengths(self, lengths: Sequence[int], truncated: int) -> None:
        """Observe the number of tokens of each text in a request, and count the texts that were truncated."""
        self._input_length.observe_all(lengths)
        self._truncated.inc(truncated)

    def timing(self, timing: Timing, texts: int) -> None:
        """Observe the duration of each stage of a request with `texts` texts."""
        stages = (timing.total, timing.tokenization, timing.queue, timing.inference)
        for seconds, of_request, of_text in zip(stages, self._request_seconds, self._text_seconds, strict=True):
            of_request.observe(seconds)
            of_text.observe(seconds, times=texts)

    def cached(self, hits: int, misses: int) -> None:
        """Count cache hits and cache misses.

        Hits are texts whose vector was cached or already being computed. Misses are texts that were sent to the engine.
        """
        self._hits.inc(hits)
        self._misses.inc(misses)

    def batch(self, lengths: Sequence[int], *, length_step: int, max_length: int, max_tokens: int) -> None:
        """Observe a batch of texts with `lengths` tokens.

        The engine pads lengths to a multiple of `length_step`, up to `max_length`. `max_tokens` is the token budget of
        a batch.
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
        """Observe the duration of a search.

        A failed search is not observed, because its corpus may not exist.
        """
        began = perf_counter()
        yield
        self._searches.observe(perf_counter() - began, of=self._label(corpus))

    def waiting(self, texts: int, tokens: int, by_lane: Mapping[str, int]) -> None:
        """Set the sizes of the queue.

        `texts` is the number of waiting texts. `tokens` is the number of tokens of waiting texts and running batches.
        `by_lane` has the number of waiting tokens for each of the keys `interactive` and `bulk`.
        """
        self._queue_size.set(texts)
        self._queued_tokens.set(tokens)
        for lane, waiting in by_lane.items():
            self._waiting_tokens.labels(lane).set(waiting)

    def serving(self, ready: bool, encoders: Iterable[tuple[Manifest, str, str]]) -> None:
        """Set whether the server is `ready`, and set the served models, each with its runtime and precision.

        Until a model is loaded, its runtime and precision are empty strings.
        """
        self._ready.set(ready)
        self._model.clear()
        for manifest, runtime, precision in encoders:
            self._model.labels(manifest.name, manifest.fingerprint, runtime, precision).set(1)

    def indexes(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Set the number of vectors and the bytes of each corpus's index, and remove the series of deleted corpora."""
        for gone in self._labelled - sizes.keys():
            self._labelled.remove(gone)
            self._searches.forget(gone)
        self._corpora.set(len(sizes))
        self._vectors.clear()
        self._bytes.clear()
        for corpus, (vectors, bytes) in sizes.items():
            label = self._label(corpus)
            self._vectors.labels(label).inc(vectors)
            self._bytes.labels(label).inc(bytes)

    def _label(self, corpus: str) -> str:
        if len(self._labelled) < self._most_labels:
            self._labelled.add(corpus)
        return corpus if corpus in self._labelled else OTHERS

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self.registry)


def _failure(error: BaseException) -> str:
    if isinstance(error, ServiceError):
        return _FAILURES.get(error.kind, error.kind.lower())
    return "dropped" if isinstance(error, asyncio.CancelledError) else "internal"
