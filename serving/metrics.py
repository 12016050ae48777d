"""What Prometheus reads: text-embeddings-inference's `te_*` names where they apply, and ours."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from models.tokenizer import Tokens
from serving.errors import ServiceError

_SECONDS = tuple(0.000_5 * 1.75**i for i in range(20))
_TOKENS = tuple(float(2**i) for i in range(15))


class Lengths(Collector):
    """A histogram of token counts that takes a request's at once: prometheus_client's takes 2 µs for each of them."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name, self._documentation = name, documentation
        self._counts = [0] * (len(_TOKENS) + 1)
        self._sum = 0
        registry.register(self)

    def observe(self, lengths: Sequence[int]) -> None:
        """Count each of them."""
        for length in lengths:
            self._counts[bisect_left(_TOKENS, length)] += 1
        self._sum += sum(lengths)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client: buckets hold what is at most their bound."""
        bounds = [*map(str, _TOKENS), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(self._counts), strict=True)]
        family = HistogramMetricFamily(self._name, self._documentation)
        family.add_metric([], buckets, self._sum)
        yield family


class Metrics:
    """One registry for one server. TEI's counters lack the suffix `_total`, so here they are gauges that only grow."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        to = self.registry
        self.count = Gauge("te_request_count", "Requests for inference", ["method"], registry=to)
        self.success = Gauge("te_request_success", "Requests answered with a result", ["method"], registry=to)
        self.failure = Gauge("te_request_failure", "Requests answered with an error, by its kind", ["err"], registry=to)
        self.duration = Histogram("te_request_duration", "Seconds to a result", buckets=_SECONDS, registry=to)
        self.tokenization = Histogram(
            "te_request_tokenization_duration", "Seconds to tokenise a request", buckets=_SECONDS, registry=to
        )
        self.input_length = Lengths("te_request_input_length", "Tokens of each text", to)
        self.queue_size = Gauge("te_queue_size", "Texts waiting", registry=to)
        self.queued_tokens = Gauge("isosphere_queued_tokens", "Tokens admitted and not yet embedded", registry=to)
        self.batch_size = Histogram("te_batch_next_size", "Texts in a batch", buckets=_TOKENS, registry=to)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Padded tokens in a batch", buckets=_TOKENS, registry=to)
        self.useful = Counter("isosphere_useful_tokens", "Tokens of texts that went through the model", registry=to)
        self.padded = Counter("isosphere_padded_tokens", "Tokens that went through the model with padding", registry=to)
        self.truncated = Counter("isosphere_truncated_inputs", "Texts that were cut", registry=to)
        self.searches = Histogram("isosphere_search_duration", "Seconds to search", buckets=_SECONDS, registry=to)
        self.corpora = Gauge("isosphere_corpora", "Corpora", registry=to)
        self.model = Gauge("isosphere_model", "1 for the one served", ["name", "fingerprint"], registry=to)
        self.reloads = Counter("isosphere_reloads", "Attempts to serve another bundle", ["outcome"], registry=to)
        self.ready = Gauge("isosphere_ready", "1 while requests are served", registry=to)

    @contextmanager
    def request(self, texts: int) -> Iterator[None]:
        """Count and time one request for the embedding of `texts`."""
        method = "single" if texts == 1 else "batch"
        self.count.labels(method).inc()
        started = time.perf_counter()
        try:
            yield
        except ServiceError as error:
            self.failure.labels(error.kind.lower()).inc()
            raise
        except asyncio.CancelledError:
            self.failure.labels("dropped").inc()
            raise
        self.success.labels(method).inc()
        self.duration.observe(time.perf_counter() - started)

    def batch(self, batch: Sequence[Tokens]) -> None:
        """Observe a batch on its way to the engine."""
        useful, padded = sum(map(len, batch)), len(batch) * max(map(len, batch))
        self.batch_size.observe(len(batch))
        self.batch_tokens.observe(padded)
        self.useful.inc(useful)
        self.padded.inc(padded)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
