"""Tests of the promotion report in a bundle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fastapi.testclient import TestClient

from serving.app import create_app
from serving.service import Service
from tests.serving.conftest import LOCAL, Bundles

MakeService = Callable[..., Service]
REPORT = b'{"format": 1, "evaluations": []}'
PAGE = b"<!doctype html><script>alert(1)</script>"


def test_the_report_of_the_bundle_in_service(
    make_service: MakeService, bundles: Bundles, wait_until_ready: Callable[[TestClient], None]
) -> None:
    model = replace(bundles.fake, report=REPORT, report_page=PAGE)
    with TestClient(create_app(make_service(model)), client=LOCAL) as client:
        wait_until_ready(client)
        path = "/models/fake/report"
        plain = client.get(path)
        assert (plain.content, plain.headers["content-type"]) == (REPORT, "application/json")
        assert plain.headers["x-model-fingerprint"] == "fake-1"
        browser = {"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
        for page in (client.get(path, headers=browser), client.get(path, params={"format": "HTML"})):
            assert page.content == PAGE
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "sandbox" in policy and "script" not in policy
            assert page.headers["x-content-type-options"] == "nosniff"
        assert client.get(path, headers=browser, params={"format": "json"}).content == REPORT
        assert client.get(path, params={"format": "pdf"}).status_code == 422
        other = client.get("/models/other/report")
        assert other.status_code == 404 and "'fake'" in other.json()["error"]
        client.post("/admin/reload")
        assert client.get(path).status_code == 404, "it was the other bundle's"
        assert client.get("/models/turned/report", headers=browser).content == b'{"format": 1}', "no page, so JSON"
        refused = client.get("/models/turned/report", params={"format": "html"})
        assert refused.status_code == 404 and "only available as JSON" in refused.text


def test_no_report(local: TestClient) -> None:
    answer = local.get("/models/fake/report")
    assert answer.status_code == 404
    assert "`isosphere promote" in answer.json()["error"]
