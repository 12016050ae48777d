"""The web page: whatever lies in `serving/web`."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from serving.errors import NotFound

router = APIRouter(include_in_schema=False)

WEB = Path(__file__).resolve().parents[1] / "web"
SERVED = {".html", ".css", ".js", ".svg", ".png", ".ico"}
PLACEHOLDER = """<!doctype html><title>Isosphere</title>
<p>Isosphere is running. <a href="/docs">What it can do</a>."""


@router.get("/", response_model=None)
async def index() -> Response:
    """The page, or a pointer to the documentation where none is installed."""
    page = WEB / "index.html"
    return FileResponse(page) if page.exists() else HTMLResponse(PLACEHOLDER)


@router.get("/web/{file}", response_model=None)
async def asset(file: str) -> Response:
    """A file of the page. Only names that the folder lists are served, so no path leads out of it."""
    found = next((path for path in WEB.iterdir() if path.name == file and path.suffix in SERVED), None)
    if not found:
        raise NotFound(f"there is no page file {file!r}")
    return FileResponse(found)
