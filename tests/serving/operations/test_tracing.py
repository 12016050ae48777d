"""Tests of traces at a collector: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from models.bundle.tokenizer import Tokens
from serving.api.middleware import traces
from serving.app import create_app
from serving.inference.fake_engine import FakeEngine
from serving.service import Service
from serving.settings import SettingsError, read_settings
from tests.conftest import PATIENCE
from tests.serving.conftest import Launcher
from tests.serving.engines import model

Traced = Callable[..., AbstractContextManager[TestClient]]
SECRET = "zebra"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
PARTS = {"tokenise", "queue", "infer"}


class Receiver(ThreadingHTTPServer):
    """Collector that stores requests to /v1/traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.bodies: list[bytes] = []

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Span]:
        of_resources = (spans for request in self.requests for spans in request.resource_spans)
        return [span for resource in of_resources for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> Span:
        (span,) = (span for span in self.spans if span.name == name)
        return span


class _Receiving(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        known = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
        if known:
            self.server.bodies.append(body)
        self.send_response(200 if known else 404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    serving = threading.Thread(target=receiver.serve_forever)
    serving.start()
    yield receiver
    receiver.shutdown()
    serving.join()
    receiver.server_close()


@pytest.fixture
def traced(
    make_service: Callable[..., Service], wait_until_ready: Callable[[TestClient], None], receiver: Receiver
) -> Traced:
    """Return a server that sends its traces to the receiver, the last ones at its end."""

    @contextmanager
    def run(**options: Any) -> Iterator[TestClient]:
        app = create_app(make_service(**{"otlp_endpoint": receiver.endpoint} | options))
        with TestClient(app, raise_server_exceptions=False) as client:
            wait_until_ready(client)
            yield client

    return run


def attributes(span: Span) -> dict[str, Any]:
    values = {one.key: one.value for one in span.attributes}
    return {key: getattr(value, value.WhichOneof("value") or "") for key, value in values.items()}


def parent_of(trace: str = TRACE, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{PARENT}-{flags}"}


def test_a_search_is_one_trace_within_its_callers(traced: Traced, receiver: Receiver) -> None:
    with traced() as client:
        client.put("/corpora/mine", json={})
        client.post("/corpora/mine/documents", json={"documents": [{"text": "a text"}]})
        headers = parent_of() | {"x-request-id": "mine-1"}
        assert client.post("/corpora/mine/search", json={"query": "some text"}, headers=headers).status_code == 200
    request = receiver.named("POST /corpora/{name}/search")
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    assert request.kind == Span.SPAN_KIND_SERVER
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/corpora/{name}/search",
        "http.response.status_code": 200,
        "x-request-id": "mine-1",
    }
    parts = {span.name: span for span in receiver.spans if span.parent_span_id == request.span_id}
    assert parts.keys() == PARTS | {"search"}
    assert all(span.trace_id == request.trace_id for span in parts.values())
    assert attributes(parts["tokenise"]) == {"texts": 1, "tokens": 6}, "those of the query's prompt, too"
    moments = [request.start_time_unix_nano]
    for name in ("tokenise", "queue", "infer", "search"):
        moments += [parts[name].start_time_unix_nano, parts[name].end_time_unix_nano]
    assert moments == sorted(moments) and moments[-1] <= request.end_time_unix_nano
    resource = attributes(receiver.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "isosphere" and resource["service.version"]


@pytest.mark.slow
def test_requests_at_once_keep_their_parts_apart(traced: Traced, receiver: Receiver) -> None:
    traces = [f"{i:032x}" for i in range(1, 17)]
    with traced() as client, ThreadPoolExecutor(8) as pool:

        def ask(i: int) -> int:
            texts = [f"text {j}" for j in range(i + 1)]
            return client.post("/embed", json={"inputs": texts}, headers=parent_of(traces[i])).status_code

        assert set(pool.map(ask, range(len(traces)))) == {200}
    for i, trace in enumerate(traces):
        spans = {span.name: span for span in receiver.spans if span.trace_id.hex() == trace}
        assert spans.keys() == {"POST /embed"} | PARTS
        assert attributes(spans["tokenise"])["texts"] == i + 1


@pytest.mark.slow
def test_a_caller_who_does_not_sample_is_not_traced_nor_are_probes(traced: Traced, receiver: Receiver) -> None:
    with traced() as client:
        for path in ("/health", "/livez", "/readyz", "/ping", "/metrics"):
            client.get(path, headers=parent_of())
        client.post("/embed", json={"inputs": "a"}, headers=parent_of(flags="00"))
        client.get("/info", headers={"traceparent": "nonsense"})
    assert [span.name for span in receiver.spans] == ["GET /info"], "a trace of its own"
    assert receiver.spans[0].parent_span_id == b""


class Quoting(FakeEngine):
    """Engine that fails with a bug whose message quotes its input."""

    def tokenize(self, texts: Sequence[str], direction: Any) -> list[Tokens]:
        if any("fail" in text for text in texts):
            raise RuntimeError(f"can't read {texts}")
        return super().tokenize(texts, direction)


def test_errors_are_told_and_nothing_that_a_caller_sent(traced: Traced, receiver: Receiver) -> None:
    with traced(model=model(lambda _: Quoting())) as client:
        client.put(f"/corpora/{SECRET}", json={"description": SECRET})
        client.post(f"/corpora/{SECRET}/documents", json={"documents": [{"id": SECRET, "text": f"a {SECRET}"}]})
        client.get(f"/corpora/{SECRET}/documents/{SECRET}?of={SECRET}")
        client.post("/search", json={"corpus": SECRET, "query": SECRET})
        assert client.post("/rerank", json={"query": SECRET, "texts": [], "x": SECRET}).status_code == 400
        assert client.post("/embed", json={"inputs": f"{SECRET} fail"}).status_code == 500
        assert client.get(f"/{SECRET}").status_code == 404
    assert not any(SECRET.encode() in body for body in receiver.bodies)
    failed = receiver.named("POST /embed")
    assert failed.status.code == Status.STATUS_CODE_ERROR and attributes(failed)["error.type"] == "500"
    assert receiver.named("POST /rerank").status.code == Status.STATUS_CODE_UNSET
    assert attributes(receiver.named("GET"))["http.response.status_code"] == 404


@pytest.mark.slow
def test_a_collector_that_is_not_there_stops_nobody(
    traced: Traced, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "SECONDS_TO_SEND", 0.05)
    with traced(otlp_endpoint=f"http://127.0.0.1:{free_port}") as client:
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200


@pytest.mark.slow
def test_the_environment_names_a_collector_and_a_service(
    launch: Launcher, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    running = launch()
    assert running.client.post("/embed", json={"inputs": "a"}).status_code == 200
    running.process.terminate()
    assert running.process.wait(PATIENCE) == 0
    assert {span.name for span in receiver.spans} == {"POST /embed"} | PARTS
    resource = attributes(receiver.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "mine"


@pytest.mark.parametrize("endpoint", ["nowhere", "127.0.0.1:4318", "grpc://127.0.0.1:4317"])
def test_what_is_no_http_address_is_refused_at_the_start(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="--otlp-endpoint: "):
        read_settings(["--otlp-endpoint", endpoint])


WITHOUT_SDK = """
import sys
sys.modules["opentelemetry.sdk"] = None
from serving.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
MADE = """
import sys
from pathlib import Path
from serving.app import create_app
from serving.commands.starting import STORES, Service, Settings, local_corpora
from serving.inference.engines import ENGINES
data = Path(sys.argv[1])
settings = Settings(data=data)
create_app(Service(settings, ENGINES["fake"](data), local_corpora(settings, STORES["memory"](data))))
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))])
"""


@pytest.mark.slow
def test_without_the_packages_it_says_which(tmp_path: Any) -> None:
    options = ["--engine", "fake", "--port", "0", "--data", str(tmp_path), "--otlp-endpoint", "http://127.0.0.1:4318"]
    ended = subprocess.run([sys.executable, "-c", WITHOUT_SDK, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "isosphere: traces need the extra `otel`: pip install 'isosphere[otel]'" in ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_nothing_of_it_is_imported_where_nobody_asks(tmp_path: Any) -> None:
    shown = subprocess.run([sys.executable, "-c", MADE, str(tmp_path)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
