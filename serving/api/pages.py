"""The web page: whatever lies in `serving/web`."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

from serving.errors import NotFound

router = APIRouter(include_in_schema=False)

WEB = Path(__file__).resolve().parents[1] / "web"
SERVED = {".html", ".css", ".js", ".svg", ".png", ".ico"}
PLACEHOLDER = """<!doctype html><title>Isosphere</title>
<p>Isosphere is running. <a href="docs">What it can do</a>."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Nothing runs and nothing is asked for but what this server sends; kept by browsers, but never used unasked."""

_files = StaticFiles(directory=WEB, check_dir=False)


@router.get("/", response_model=None)
async def index(request: Request) -> Response:
    """The page, or a pointer to the documentation where none is installed."""
    if (page := WEB / "index.html").exists():
        return _file(page, request)
    return HTMLResponse(PLACEHOLDER, headers=HEADERS)


@router.get("/web/{file:path}", response_model=None)
async def asset(file: str, request: Request) -> Response:
    """A file of the page. Only names that the folder lists are served, so no path leads out of it."""
    found = next((path for path in WEB.rglob("*") if path.relative_to(WEB).as_posix() == file), None)
    if not found or found.suffix not in SERVED:
        raise NotFound(f"there is no page file {file!r}")
    return _file(found, request)


def _file(path: Path, request: Request) -> Response:
    """304 where the browser has it as it is."""
    answer = _files.file_response(path, path.stat(), request.scope)
    answer.headers.update(HEADERS)
    return answer
