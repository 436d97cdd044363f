"""Around every request: who may send it, what is refused before it reaches the application, count
and log.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from teal.serving.engine.errors import (
    ARROW,
    JSON,
    ServiceError,
    media_type,
    overloaded,
    storage_fault,
)
from teal.serving.engine.log import LOG
from teal.serving.engine.requests import MeasurementOptions, Options
from teal.serving.http.metrics import Metrics

BODY_S = 30.0  # seconds in which a body must arrive: a stalled one holds a connection
# Of a body in JSON, which takes ten times its size in memory; matrices are sent as Arrow.
MAX_JSON_BYTES = 4 << 20
_MAX_OPEN_BODIES = 8  # largest bodies that all requests together may have in memory
_MAX_DIGITS = 18  # of a Content-Length; Python refuses to read very long numbers
_LOGGED = {*Options.model_fields, *MeasurementOptions.model_fields, "previous", "after"}
_MAX_QUERY = 200  # characters of an address's parameters in the log
_WITH_BODY = ("POST", "PUT", "PATCH")
# Headers that have one value: of two, this code and the application might each read another one
# (RFC 9110, 5.3).
_SINGLE = (
    b"host",
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"authorization",
    b"origin",
    b"idempotency-key",
)


class Watched:
    """The watch around every request: it refuses, reads bodies, counts and logs.

    Plain ASGI, because Starlette's middleware for functions costs a task and two streams a request.

    Args:
        metrics: metrics that count requests.
        most_bytes: size of a body.
        tokens: tokens of which requests must bear one; none for everybody.
        hosts: names that requests may be addressed to; none for any.

    Attributes:
        routes: routes of the application, by which refused requests are counted too.
    """

    def __init__(
        self, metrics: Metrics, most_bytes: int, tokens: tuple[str, ...], hosts: tuple[str, ...]
    ) -> None:
        self._metrics, self._most_bytes = metrics, most_bytes
        self.routes: Sequence[BaseRoute] = ()
        # Bytes of the bodies that are in memory, of all requests and of each client's.
        self._open_bytes: Counter[str] = Counter()
        self._tokens, self._hosts = (
            [token.encode() for token in tokens],
            {host.strip("[]").lower() for host in hosts},
        )

    async def handle(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request of an application, as ASGI defines it."""
        if scope["type"] == "websocket":  # nothing here speaks it
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        begin, number, status = time.perf_counter(), uuid.uuid4().hex[:12], 0
        method = scope["method"]
        if method == "HEAD":  # an answer to GET without its body (RFC 9110, 9.3.2)
            scope = {**scope, "method": "GET"}
        client, own_bytes = "", 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            elif method == "HEAD":
                message["body"] = b""
            await send(message)

        self._metrics.open.inc()
        try:
            scope["teal"] = state = {"number": number, "client": "", "media_type": ""}
            self._check(scope, state)
            client = state["client"]
            if scope["method"] in _WITH_BODY:

                def reserve(size: int) -> None:
                    nonlocal own_bytes
                    own_bytes += self._reserve(client, size)

                receive = _Read(await _body(receive, reserve), receive)
            await app(scope, receive, sent)
        except ServiceError as error:
            if status:
                raise
            await fault_response(error)(scope, receive, sent)
        except Exception as error:
            fault = storage_fault(error) if isinstance(error, OSError) else None
            if status or fault is None:
                LOG.exception("failed", extra={"teal": {"request": number}})
                fault = ServiceError(500, "internal", f"an error of ours, logged as {number}")
            if status:  # half of an answer is out: the connection must break
                raise
            await fault_response(fault)(scope, receive, sent)
        finally:
            self._release(client, own_bytes)
            self._metrics.open.dec()
            seconds = time.perf_counter() - begin
            route = self._route(scope)
            self._metrics.requests.labels(route, status).inc()
            self._metrics.latency.labels(route).observe(seconds)
            if LOG.isEnabledFor(logging.INFO):
                entry = {
                    "request": number,
                    "client": scope["teal"]["client"],
                    "method": method,
                    "route": route,
                }
                entry |= {
                    "network": scope.get("path_params", {}).get("name", ""),
                    "query": _query(scope),
                }
                if "deadline_ms" in scope.get("teal", {}):  # an allocation that was answered
                    entry["deadline_ms"] = scope["teal"]["deadline_ms"]
                LOG.info(
                    "answered",
                    extra={"teal": {**entry, "status": status, "ms": round(1e3 * seconds, 3)}},
                )

    def _route(self, scope: Scope) -> str:
        """The path of the route with the names of its parameters: names of networks would fill the
        metrics.
        """
        if "route" not in scope:  # refused before the application looked for it
            for route in self.routes:
                if route.matches(scope)[0] is not Match.NONE:
                    return str(getattr(route, "path", "other"))
        return str(getattr(scope.get("route"), "path", "other"))

    def _reserve(self, client: str, size: int) -> int:
        """Make room for a part of a body that has arrived: of the room for all, one client gets no
        more than half.

        Raises:
            ServiceError: there is none.
        """
        room = _MAX_OPEN_BODIES * self._most_bytes
        if self._open_bytes.total() + size > room or self._open_bytes[client] + size > room // 2:
            raise overloaded()
        self._open_bytes[client] += size
        return size

    def _release(self, client: str, size: int) -> None:
        self._open_bytes[client] -= size
        if self._open_bytes[client] <= 0:
            del self._open_bytes[client]

    def _check(self, scope: Scope, state: dict[str, Any]) -> None:
        """Refuse a request before its body is read; else note whom it counts for, and the type of
        its body.

        Args:
            scope: see ASGI.
            state: gets ``client``, an address or the number of a token, and ``media_type``.

        Raises:
            ServiceError: what is wrong with it.
        """
        state["client"] = str((scope.get("client") or ("",))[0])
        headers = _single_headers(scope)
        if (
            b"%2f" in scope.get("raw_path", b"").lower()
        ):  # it would divide the path once that is decoded
            raise ServiceError(404, "http", "no name in a path has a slash")
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts and _host_name(host) not in self._hosts:
            raise ServiceError(400, "wrong_host", "this service has another name")
        # A page of another site has no token; with one, the service may be behind a proxy that has
        # a name of its own.
        origin = headers.get(b"origin")
        if (
            origin is not None
            and not self._tokens
            and not _is_same_site(origin.decode("latin-1"), host)
        ):
            raise ServiceError(
                403,
                "other_origin",
                "pages of another site may not use this service without a token",
            )
        private = scope["path"].startswith(("/v1/", "/metrics"))
        if self._tokens and private:
            scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
            borne = [
                number
                for number, token in enumerate(self._tokens)
                if hmac.compare_digest(secret, token)
            ]
            if scheme.lower() != b"bearer" or not borne:
                raise ServiceError(401, "unauthorised", "a valid bearer token is required")
            if len(self._tokens) > 1:  # with one token, clients are told apart by their addresses
                state["client"] = f"token {borne[0]}"
        if scope["method"] not in _WITH_BODY:
            return
        coding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if coding not in ("", "identity"):
            raise ServiceError(
                415, "unsupported_media_type", f"send bodies as they are, not in {coding[:80]!r}"
            )
        kind = media_type(headers.get(b"content-type", b"").decode("latin-1"))
        takes = (
            (JSON, ARROW) if scope["method"] == "POST" else (JSON,)
        )  # matrices are posted; networks are JSON
        if kind not in takes:  # a page of another site can send a body without a type unasked
            raise ServiceError(
                415, "unsupported_media_type", f"send {' or '.join(takes)}, not {kind[:80]!r}"
            )
        declared = headers.get(b"content-length", b"")
        if not declared.isdigit():
            raise ServiceError(411, "length_required", "a body needs a Content-Length")
        most = min(self._most_bytes, MAX_JSON_BYTES) if kind == JSON else self._most_bytes
        if len(declared) > _MAX_DIGITS or int(declared) > most:
            raise ServiceError(413, "too_large", f"a body of {kind} has at most {most:,} bytes")
        state["media_type"] = kind


class WatchedApp:
    """An application with :class:`Watched` around it.

    Args:
        app: the application.
        watched: what stands around it.
    """

    def __init__(self, app: ASGIApp, watched: Watched) -> None:
        self._app, self._watched = app, watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI defines it."""
        await self._watched.handle(self._app, scope, receive, send)


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name.

    Raises:
        ServiceError: one that has one value is there twice.
    """
    counts = Counter(name for name, _ in scope["headers"])
    twice = [name.decode() for name in _SINGLE if counts[name] > 1]
    if twice:
        raise ServiceError(400, "header_twice", f"a request has one header {twice[0]}")
    return dict(scope["headers"])


def _is_same_site(origin: str, host: str) -> bool:
    """Whether an Origin header names the service that a Host header names."""
    try:
        site = urlsplit(origin)
        usual = {"http": 80, "https": 443}.get(site.scheme)
        parts = urlsplit(f"//{host}")
        return bool(site.hostname) and (site.hostname, site.port or usual) == (
            parts.hostname,
            parts.port or usual,
        )
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a Host header, without port; "" where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # a port that is no number is a fault
    except ValueError:
        return ""
    return (parts.hostname or "").lower()


def _query(scope: Scope) -> str:
    """The parameters of the address that the API has; others are left out: somebody may send a
    token so.
    """
    sent = parse_qsl(
        scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="replace"
    )
    return urlencode([(name, value) for name, value in sent if name in _LOGGED])[:_MAX_QUERY]


async def _body(receive: Receive, reserve: Callable[[int], None]) -> bytes:
    """The whole body.

    Args:
        receive: see ASGI.
        reserve: called with the size of each part that arrives.

    Raises:
        ServiceError: it does not arrive in time, the client has gone, or there is no room for it.
    """
    parts: list[bytes] = []
    end = time.perf_counter() + BODY_S
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, end - time.perf_counter()))
        except TimeoutError:
            raise ServiceError(
                408, "body_timeout", f"a body must arrive within {BODY_S:g} s"
            ) from None
        if message["type"] == "http.disconnect":
            raise ServiceError(400, "disconnected", "the client has gone")
        part = message.get("body", b"")
        reserve(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class _Read:
    """Receives for the application: a body that has been read, then what comes after it."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def fault_response(error: ServiceError) -> JSONResponse:
    """The error as an answer."""
    headers = (
        {"Retry-After": str(max(1, round(error.retry_after_s)))} if error.retry_after_s else {}
    )
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    message = error.message.encode("utf-8", "replace").decode(
        "utf-8"
    )  # what came in may be no text at all
    return JSONResponse({"error": error.code, "message": message}, error.status, headers)
