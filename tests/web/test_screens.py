"""Screenshots of every view (ISOSPHERE_SCREENS names their folder), and the picture in the README."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from serving.operations.failpoints import VARIABLE
from tests.serving.conftest import Launcher, Running
from tests.serving.processes import small_demo
from tests.web.conftest import LOOKS, Visit
from tests.web.views import VIEWS, shown

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PICTURE_BYTES = 200_000
QUESTION = "wait until several tasks have finished"
LOADING_SECONDS = 600
LOOKED_AT = bool(os.environ.keys() & {"ISOSPHERE_SCREENS", "ISOSPHERE_PICTURE"})


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file that delays the demo corpus, whose creation is a part of loading, until it is removed."""
    file = tmp_path_factory.mktemp("held") / "loading"
    file.touch()
    return file


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory, held: Path) -> Iterator[Running]:
    """Yield a server with the default encoder and the demo corpus, which loads until `held` is removed.

    The corpus is complete only if screenshots are taken, because its embedding takes half a minute on all cores.
    """
    bundle = Path(os.environ.get("ISOSPHERE_BUNDLE") or ROOT / "artifacts" / "default")
    if not (bundle / "manifest.json").exists():
        pytest.skip(f"{bundle} is not there: `make serve` makes the default bundle, or name one in ISOSPHERE_BUNDLE")
    launcher = Launcher(tmp_path_factory.mktemp("demo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, f"store.before-create=hold:{held}")
        command = (sys.executable, "-m", "serving") if LOOKED_AT else small_demo(400)
        server = launcher("--bundle", str(bundle), engine="auto", demo=True, ready=False, command=command)
    answers(server, "/livez")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def demo(starting: Running, held: Path) -> Running:
    """Return the server after the demo corpus is complete."""
    held.unlink(missing_ok=True)
    answers(starting, "/readyz")
    deadline = time.monotonic() + LOADING_SECONDS
    while not any(job["state"] == "succeeded" for job in starting.client.get("/jobs").json()["jobs"]):
        assert time.monotonic() < deadline, starting.log.read_text()
        time.sleep(0.1)
    return starting


def answers(server: Running, path: str) -> None:
    """Wait until the server answers 200 at a path."""
    deadline = time.monotonic() + LOADING_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if server.client.get(path).status_code == 200:
                return
        assert server.process.poll() is None, server.log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"no 200 for {path}: {server.log.read_text()}")


def test_while_it_loads_the_page_says_so_and_goes_on_by_itself(
    browser: Browser, starting: Running, held: Path, visit: Visit
) -> None:
    page = visit(starting.address, expected=[r"status of 503 .*/readyz\)$"])
    expect(page.get_by_text("The server is loading")).to_be_visible()
    held.unlink()
    expect(page.get_by_role("searchbox")).to_be_visible(timeout=1000 * LOADING_SECONDS)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_its_picture(demo: Running, visit: Visit, screens: Path, view: str, look: str) -> None:
    page = visit(demo.address, **LOOKS[look])
    shown(page, view, QUESTION)
    page.screenshot(path=screens / f"{view}-{look}.png", full_page=True, animations="disabled")


def test_the_picture_of_the_readme(demo: Running, visit: Visit, tmp_path: Path) -> None:
    """Renew the picture with ISOSPHERE_PICTURE=docs/page.png."""
    page = visit(demo.address, viewport={"width": 1100, "height": 760})
    shown(page, "search", QUESTION)
    page.get_by_text("Both", exact=True).click()
    page.get_by_text("Options", exact=True).click()
    expect(page.get_by_text("words 1").first).to_be_visible()
    path = Path(os.environ.get("ISOSPHERE_PICTURE") or tmp_path / "page.png")
    page.screenshot(path=path, animations="disabled")
    assert path.stat().st_size < PICTURE_BYTES
