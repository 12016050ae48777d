"""CORS: browsers let web pages of other origins ask only if `--cors-origin` names them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


def allow(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Answer preflights of these origins, and add CORS headers to answers.

    Pages may send any header and read any header. As `allow_headers`, `*` makes Starlette repeat the headers that a
    preflight asks for; a literal `*` would exclude Authorization. Cookies are not allowed: pages send keys themselves,
    and browsers never send them on their own.
    """
    app.add_middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"], expose_headers=["*"]
    )
