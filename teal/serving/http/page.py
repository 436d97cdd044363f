"""The page at /: networks, how full their links are, and a form to change them.  It asks the API like anybody else."""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from teal.web import network_map_js, plotly_js

_ASSETS = Path(__file__).parent / "assets"
# Plotly writes style elements; nothing else may be inline, and nothing may come from elsewhere or go there.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def _asset(name: str) -> Callable[[], str]:
    return lambda: (_ASSETS / name).read_text(encoding="utf-8")


_FILES = {
    "page.css": ("text/css", _asset("page.css")),
    "page.js": ("text/javascript", _asset("page.js")),
    "network_map.js": ("text/javascript", network_map_js),
    "plotly.js": ("text/javascript", plotly_js),
}


@functools.cache
def _packed(name: str) -> bytes:
    """A file of the page, compressed once."""
    return gzip.compress(_FILES[name][1]().encode(), 6)


def add_page(app: FastAPI) -> None:
    """Serve the page and its files; they hold no data, so no token is asked for."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return Response((_ASSETS / "page.html").read_bytes(), media_type="text/html", headers=headers)

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        if name not in _FILES:
            raise HTTPException(404, "there is no such file")
        body, headers = _packed(name), {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=600"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, media_type=_FILES[name][0], headers={**headers, "Vary": "Accept-Encoding"})
