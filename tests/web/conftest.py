"""The web page in a real browser, with a real server and a check of forbidden actions."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page, Request, expect, sync_playwright

from tests.serving.conftest import Launcher, Running

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light-1280": {"viewport": DESK},
    "dark-1280": {"viewport": DESK, "dark": True},
    "light-390": {"viewport": PHONE},
    "dark-390": {"viewport": PHONE, "dark": True},
}
"""Window sizes and colour schemes of the views, as options of `visit`."""
PATIENCE_MS = 30_000
"""Maximum wait in milliseconds, which is long because a busy machine is not an error."""
MOST_TABS = 80


@dataclass
class Watch:
    """Forbidden actions of a page. `expected` has patterns of the actions that the test provokes."""

    origin: str
    expected: Sequence[str] = ()
    complaints: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._complain(f"uncaught: {error}"))
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._complain(f"console: {message.text} ({message.location.get('url')})")

    def _dialog(self, dialog: Dialog) -> None:
        self._complain(f"dialog: {dialog.message}")
        dialog.accept()

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self._complain(f"third party: {request.url}")

    def _complain(self, text: str) -> None:
        if not any(re.search(pattern, text) for pattern in self.expected):
            self.complaints.append(text)


Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the system's chromium for a module, because its thread has an event loop while it runs."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not chromium:
        pytest.skip("there is no chromium: `apt-get install chromium`, or name one in CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Return a function that opens an address in its own window. The test must end without forbidden actions."""
    windows: list[tuple[Page, Watch]] = []

    def visit(
        address: str, query: str = "", *, dark: bool = False, expected: Sequence[str] = (), **options: Any
    ) -> Page:
        parts = urlsplit(address)
        watch = Watch(f"{parts.scheme}://{parts.netloc}", expected)
        colours: Literal["dark", "light"] = "dark" if dark else "light"
        context = browser.new_context(color_scheme=colours, **{"viewport": DESK, "reduced_motion": "reduce"} | options)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        watch.over(page)
        windows.append((page, watch))
        page.goto(f"{address.rstrip('/')}/{query}")
        return page

    yield visit
    for page, _ in windows:
        page.context.close()
    assert [complaint for _, watch in windows for complaint in watch.complaints] == []


@pytest.fixture(scope="module")
def launch_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Return a launcher like `launch` for servers that the tests of a module share."""
    launcher = Launcher(tmp_path_factory.mktemp("web"))
    yield launcher
    for running in launcher.started:
        running.kill()


@pytest.fixture(scope="module")
def server(launch_once: Launcher) -> Running:
    """Return a server with the fake encoder for the module."""
    return launch_once()


@pytest.fixture
def screens(tmp_path: Path) -> Path:
    """Return the folder of screenshots, ISOSPHERE_SCREENS if it is set."""
    folder = Path(os.environ.get("ISOSPHERE_SCREENS") or tmp_path / "screens")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def tab_to() -> Callable[[Page, Locator], None]:
    """Return a function that moves the focus to an element by the keyboard, or fails."""

    def tab_to(page: Page, wanted: Locator) -> None:
        for _ in range(MOST_TABS):
            if wanted.evaluate("(element) => element === document.activeElement"):
                return
            page.keyboard.press("Tab")
        raise AssertionError(f"{MOST_TABS} tabs lead not to {wanted}")

    return tab_to
