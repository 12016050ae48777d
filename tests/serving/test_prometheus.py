"""Tests of /metrics with Prometheus, its linter and the dashboard, and of the list in docs/metrics.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import PATIENCE
from tests.serving.conftest import ROOT, Launcher

DASHBOARD = json.loads((ROOT / "docs" / "grafana.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
OF_HISTOGRAMS = {"_bucket", "_sum", "_count"}
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ((?:`\w+` ?)*)\|", re.MULTILINE)


def used(client: TestClient | httpx.Client) -> str:
    """Return /metrics after everything that it counts has happened."""
    for method, path, body in [
        ("POST", "/embed", {"inputs": ["one", "two words"]}),
        ("POST", "/embed", {"inputs": []}),
        ("PUT", "/corpora/mine", {}),
        ("POST", "/corpora/mine/documents", {"documents": [{"id": "a", "text": "a text"}]}),
        ("POST", "/corpora/mine/search", {"query": "text"}),
        ("POST", "/admin/reload", {}),
    ]:
        assert client.request(method, path, json=body).status_code < 500, path
    return client.get("/metrics").text


@pytest.fixture
def exposed(local: TestClient) -> str:
    return used(local)


def families(text: str) -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of each family, by the name of its samples."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.samples, f"{name} never happened"
        found[name] = (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
    return found


def test_docs_list_every_metric_with_its_type_and_labels(exposed: str) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    listed = {name: (type, set(re.findall(r"\w+", labels))) for name, type, labels in _ROW.findall(page)}
    assert listed == families(exposed)
    for expression in re.findall(r"```promql\n(.*?)```", page, re.DOTALL):
        assert names(expression) <= series(exposed)


def test_every_metric_of_the_dashboard_is_there_and_none_is_missing_from_it(exposed: str) -> None:
    asked = set().union(*map(names, EXPRESSIONS))
    assert asked <= series(exposed)
    shown = {name for name in families(exposed) if name in asked or any(name + end in asked for end in OF_HISTOGRAMS)}
    ours = {name for name in families(exposed) if not name.startswith(("process_", "te_embed_"))}
    assert ours - shown == {"te_request_success"}, "what is neither failed nor under way"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:te|isosphere|process)_\w+", expression))


def series(text: str) -> set[str]:
    """Return every name that a query can use."""
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not on PATH (Debian: prometheus)")
def test_promtool_finds_fault_with_names_of_text_embeddings_inference_alone(exposed: str) -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=exposed, capture_output=True, text=True, check=False
    )
    # Status 1 means a wrong format, and 3 means remarks about names.
    assert checked.returncode in (0, 3), checked.stderr
    said = sorted(line.split()[0] for line in (checked.stdout + checked.stderr).splitlines())
    assert said == ["te_embed_count", "te_request_count"]


@pytest.fixture
def prometheus(launch: Launcher, free_port: int, tmp_path: Path) -> Iterator[httpx.Client]:
    """Run a real Prometheus that scrapes a real server, and yield a client of its API."""
    running = launch("--cache-bytes", "1000000")
    used(running.client)
    config = tmp_path / "prometheus.yml"
    target = running.address.removeprefix("http://")
    scrape = {"job_name": "isosphere", "scrape_interval": "200ms", "scrape_timeout": "200ms"}
    config.write_text(json.dumps({"scrape_configs": [scrape | {"static_configs": [{"targets": [target]}]}]}))
    options = {
        "config.file": config,
        "storage.tsdb.path": tmp_path / "tsdb",
        "web.listen-address": f"127.0.0.1:{free_port}",
    }
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}/api/v1", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait()


def asked(prometheus: httpx.Client, query: str) -> list[Any]:
    answer = prometheus.get("/query", params={"query": query})
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]["result"]
    return found


def wait_for(prometheus: httpx.Client, query: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            if prometheus.get("/status/config").status_code == 200 and asked(prometheus, query):
                return
        except httpx.TransportError:  # Prometheus is starting.
            pass
        assert time.monotonic() < deadline, query
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not on PATH (Debian: prometheus)")
def test_prometheus_scrapes_a_server_and_answers_every_question_of_the_dashboard(prometheus: httpx.Client) -> None:
    wait_for(prometheus, "count_over_time(up[1m]) >= 3")
    (target,) = prometheus.get("/targets").json()["data"]["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    (count,) = asked(prometheus, 'te_request_success{method="batch"}')
    assert float(count["value"][1]) >= 1
    chosen = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
    for expression in EXPRESSIONS:
        for name, value in chosen.items():
            expression = expression.replace(name, value)  # noqa: PLW2901 - as Grafana does
        assert asked(prometheus, expression), expression
