"""Routes of the API's documentation page, and of the web page, whose files are in `serving/web`."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from posixpath import dirname, join, normpath

from fastapi import APIRouter, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
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
"""Headers of the web page and its files. A page may only run and load files of this server. Browsers cache the files,
and revalidate them at each use."""

_files = StaticFiles(directory=WEB, check_dir=False)
_assets = {path.relative_to(WEB).as_posix(): path for path in WEB.rglob("*") if path.suffix in SERVED}
_inline = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_imports = re.compile(r'^import .* from "(.+)";$', re.MULTILINE)


def _modules(*names: str) -> list[str]:
    """Return `names` and the names of all modules that the modules `names` import, directly or indirectly."""
    found: set[str] = set()
    ahead = list(names)
    while ahead:
        if (name := ahead.pop()) not in found:
            found.add(name)
            ahead += [normpath(join(dirname(name), other)) for other in _imports.findall(_assets[name].read_text())]
    return sorted(found)


_preloads = {
    Path(view).stem: ", ".join(f"<web/{name}>; rel=modulepreload" for name in _modules("app.js", view))
    for view in _assets
    if view.startswith("views/")
}
"""`Link` headers that preload modules, by view. Without these headers, a browser requests a module only after it has
loaded the module that imports it."""


@router.get("/", response_model=None)
async def index(request: Request, view: str = "search") -> Response:
    """Return the web page with preload links for the modules that `view` needs.

    If the web page is not installed, return a short page with a link to the documentation.
    """
    if not (page := WEB / "index.html").exists():
        return HTMLResponse(PLACEHOLDER, headers=HEADERS)
    answer = _file(page, request)
    answer.headers["link"] = _preloads.get(view, _preloads["search"])
    return answer


@router.get("/web/{file:any}", response_model=None)
async def asset(file: str, request: Request) -> Response:
    """Return a file of the web page.

    Only files that were in the folder at startup are served, so no path can leave the folder.
    """
    if file not in _assets:
        raise NotFound(f"the web page has no file {file!r}")
    return _file(_assets[file], request)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Return the page of Swagger UI. Its URLs are relative, because a proxy may add a prefix."""
    page = get_swagger_ui_html(
        title="Isosphere",
        openapi_url="openapi.json",
        swagger_js_url="static-offline-docs/swagger-ui-bundle.js",
        swagger_css_url="static-offline-docs/swagger-ui.css",
        swagger_favicon_url="static-offline-docs/favicon.png",
    )
    (script,) = _inline.findall(bytes(page.body))
    digest = b64encode(sha256(script).digest()).decode()
    policy = HEADERS["content-security-policy"]  # the page needs an inline script and inline styles
    policy = policy.replace("script-src 'self'", f"script-src 'self' 'sha256-{digest}'")
    policy = policy.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
    page.headers.update(HEADERS | {"content-security-policy": policy})
    return page


def _file(path: Path, request: Request) -> Response:
    """Return a file, or 304 if the browser's cached copy is current."""
    answer = _files.file_response(path, path.stat(), request.scope)
    answer.headers.update(HEADERS)
    return answer
