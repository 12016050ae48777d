"""Web pages of other origins: refused by browsers unless `--cors-origin` names them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


def allow(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Answer preflights and mark answers for these origins.

    Any header may be sent (`*` here repeats what a preflight asks for: by itself it would leave out Authorization),
    and all may be read. Cookies stay out: keys are sent by whoever wrote the page, never by the browser on its own.
    """
    app.add_middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"], expose_headers=["*"]
    )
