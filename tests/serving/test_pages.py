"""Tests of the web page as it is sent: it is complete, and can't run or fetch foreign content.

tests/web tests its behaviour.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from fnmatch import fnmatch

import pytest
from fastapi.testclient import TestClient

from serving.api.pages import SERVED, WEB

FILES = sorted(path.relative_to(WEB).as_posix() for path in WEB.rglob("*") if path.suffix in SERVED)
KILOBYTE = 1000


def test_it_is_found_and_nothing_else_of_the_disk(client: TestClient) -> None:
    page = client.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for file in FILES:
        assert client.get(f"/web/{file}").text == (WEB / file).read_text()
    for escape in ("__init__.py", "..%2fapp.py", "../app.py", "views", "views/", "no-such-file.js", "app.js%0A", ""):
        assert client.get(f"/web/{escape}").status_code == 404, escape


@pytest.mark.parametrize("path", ["/", "/web/app.js", "/web/style.css"])
def test_a_browser_lets_it_run_and_ask_for_nothing_that_is_not_its_own(client: TestClient, path: str) -> None:
    policy = client.get(path).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert client.get(path).headers["x-content-type-options"] == "nosniff"


def test_the_documentation_runs_its_own_script_alone_and_stands_in_no_frame(client: TestClient) -> None:
    answer = client.get("/docs")
    policy = answer.headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert (rules["default-src"], rules["frame-ancestors"]) == ("'none'", "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/redoc").status_code == 404


def test_what_a_browser_has_is_not_sent_again_while_it_is_the_same(client: TestClient) -> None:
    first = client.get("/web/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/web/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_first_view_is_small() -> None:
    assert sum((WEB / file).stat().st_size for file in _first_view()) < 100 * KILOBYTE


def test_every_file_is_packaged() -> None:
    project = tomllib.loads((WEB.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["serving.web"]
    for file in FILES:
        assert any(fnmatch(file, pattern) and file.count("/") == pattern.count("/") for pattern in patterns), file


def _first_view() -> set[str]:
    """Return the page and the files that it needs to search."""
    found = {"index.html", "style.css", "app.js", "views/search.js"}
    while more := {file for known in found for file in _imported(known)} - found:
        found |= more
    return found


def _imported(file: str) -> set[str]:
    modules = re.findall(r'from "([^"]+)";', (WEB / file).read_text())
    return {(WEB / file).parent.joinpath(module).resolve().relative_to(WEB).as_posix() for module in modules}
