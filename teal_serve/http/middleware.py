"""ASGI middleware around every request: authentication, limits, body transfer, metrics and log.

:class:`RequestGuard` checks the head (request line and headers), reads the body within size, time
and memory limits, and passes both to the application; :class:`GuardedApp` combines a guard and an
application. Refused requests never reach the application.
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

from teal_serve.engine.errors import (
    ARROW,
    JSON,
    ServiceError,
    media_type,
    overloaded,
    storage_fault,
)
from teal_serve.engine.log import LOG
from teal_serve.engine.requests import MeasurementOptions, Options
from teal_serve.http.metrics import Metrics

# Time limit to receive a body, since a stalled body holds a connection.
BODY_TIMEOUT_S = 30.0
# Limit of a JSON body, which takes ten times its size in memory; large matrices travel as Arrow.
MAX_JSON_BYTES = 4 << 20
# Memory limit for the bodies of all requests, as a number of bodies of maximum size.
_MAX_OPEN_BODIES = 8
# Maximum digits of a Content-Length; Python refuses to parse very long numbers.
_MAX_LENGTH_DIGITS = 18
# Query parameters that are logged; others may contain secrets.
_LOGGED_PARAMETERS = {*Options.model_fields, *MeasurementOptions.model_fields, "previous", "after"}
# Maximum characters of the query in the log.
_MAX_QUERY = 200
_METHODS_WITH_BODY = ("POST", "PUT", "PATCH")
# Headers that must not be repeated (RFC 9110, 5.3): this code and the application might use
# different values.
_SINGLE_VALUE_HEADERS = (
    b"host",
    b"content-type",
    b"content-length",
    b"content-encoding",
    b"authorization",
    b"origin",
    b"idempotency-key",
)


class _Exchange:
    """State of one request and its response; its ``send`` adds the request id to the response.

    Args:
        method: method of the request, which may be HEAD.
        send: ASGI send.

    Attributes:
        request_id: identifier, sent as X-Request-Id and logged.
        begin_time: ``time.perf_counter()`` at the arrival.
        status: HTTP status of the response; 0 before the response begins.
        client: client to which the request is charged; "" until the head is checked.
        reserved_bytes: memory reserved for the body.
    """

    def __init__(self, method: str, send: Send) -> None:
        self.begin_time = time.perf_counter()
        self.request_id = uuid.uuid4().hex[:12]
        self.method = method
        self.status = 0
        self.client = ""
        self.reserved_bytes = 0
        self._send = send

    async def send(self, message: Message) -> None:
        """Send an ASGI message of the response: add the identifier; drop the body for HEAD."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            request_id = self.request_id.encode()
            message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
        elif self.method == "HEAD":
            message["body"] = b""
        await self._send(message)


class RequestGuard:
    """Guard that checks every request, reads its body, and counts and logs its response.

    Plain ASGI, since Starlette's function middleware costs a task and two streams per request.

    Args:
        metrics: Prometheus metrics.
        max_bytes: maximum body size.
        tokens: accepted bearer tokens; empty for open access.
        hosts: accepted host names; empty for any.

    Attributes:
        routes: routes of the application, by which refused requests are counted.
    """

    def __init__(
        self, metrics: Metrics, max_bytes: int, tokens: tuple[str, ...], hosts: tuple[str, ...]
    ) -> None:
        self._metrics = metrics
        self._max_bytes = max_bytes
        self.routes: Sequence[BaseRoute] = ()
        # Bytes of request bodies in memory, by client.
        self._body_bytes_by_client: Counter[str] = Counter()
        self._tokens = [token.encode() for token in tokens]
        self._hosts = {host.strip("[]").lower() for host in hosts}

    async def handle(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request: check the head, read the body, call the application, log.

        Errors become responses in the format of the API, if the response has not begun.

        Args:
            app: ASGI application.
            scope: ASGI scope; its field ``teal`` is set to request id, client and media type.
            receive: ASGI receive.
            send: ASGI send.
        """
        # Refuse websockets; pass on everything else that is not HTTP.
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = _Exchange(scope["method"], send)
        # Answer HEAD like GET, without the body (RFC 9110, 9.3.2).
        if exchange.method == "HEAD":
            scope = {**scope, "method": "GET"}
        self._metrics.open.inc()
        try:
            # Check the head; the handlers of the application read the state.
            scope["teal"] = state = {
                "number": exchange.request_id,
                "client": "",
                "media_type": "",
            }
            self._check_head(scope, state)
            exchange.client = state["client"]
            # Read the whole body, and replay it to the application.
            if scope["method"] in _METHODS_WITH_BODY:

                def reserve(size: int) -> None:
                    """Reserve memory for a received part of the body."""
                    exchange.reserved_bytes += self._reserve_memory(exchange.client, size)

                receive = _ReplayedBody(await _read_body(receive, reserve), receive)
            await app(scope, receive, exchange.send)
        except ServiceError as error:
            # Nonzero status: the response has begun.
            if exchange.status:
                raise
            await fault_response(error)(scope, receive, exchange.send)
        except Exception as error:
            service_error = _service_error(error, exchange)
            # If the response has begun, it cannot be replaced: break the connection.
            if exchange.status:
                raise
            await fault_response(service_error)(scope, receive, exchange.send)
        finally:
            self._finish(exchange, scope)

    def _finish(self, exchange: _Exchange, scope: Scope) -> None:
        """Release the memory of a finished request's body; record it in metrics and log."""
        self._release_memory(exchange.client, exchange.reserved_bytes)
        self._metrics.open.dec()
        seconds = time.perf_counter() - exchange.begin_time
        route = self._route_template(scope)
        self._metrics.requests.labels(route, exchange.status).inc()
        self._metrics.latency.labels(route).observe(seconds)
        if LOG.isEnabledFor(logging.INFO):
            entry = {**_log_entry(scope, exchange.method, route), "status": exchange.status}
            LOG.info("answered", extra={"teal": {**entry, "ms": round(1e3 * seconds, 3)}})

    def _route_template(self, scope: Scope) -> str:
        """Return the path template of the request's route, "other" without a route.

        Metrics are labelled by templates, since paths with network names are unlimited.
        """
        # The application has not matched its routes for a refused request.
        if "route" not in scope:
            for route in self.routes:
                if route.matches(scope)[0] is not Match.NONE:
                    return str(getattr(route, "path", "other"))
        return str(getattr(scope.get("route"), "path", "other"))

    def _reserve_memory(self, client: str, part_bytes: int) -> int:
        """Reserve memory for a received part of a body; return its size.

        One client gets at most half of the memory for all bodies.

        Args:
            client: client of the request.
            part_bytes: bytes of the part.

        Raises:
            ServiceError: the limit is reached.
        """
        # Bytes that the bodies of all requests may take.
        memory_limit = _MAX_OPEN_BODIES * self._max_bytes
        if (
            self._body_bytes_by_client.total() + part_bytes > memory_limit
            or self._body_bytes_by_client[client] + part_bytes > memory_limit // 2
        ):
            raise overloaded()
        self._body_bytes_by_client[client] += part_bytes
        return part_bytes

    def _release_memory(self, client: str, size: int) -> None:
        """Release the memory of a request's body.

        Args:
            client: client of the request.
            size: reserved bytes.
        """
        self._body_bytes_by_client[client] -= size
        if self._body_bytes_by_client[client] <= 0:
            del self._body_bytes_by_client[client]

    def _check_head(self, scope: Scope, state: dict[str, Any]) -> None:
        """Check request line and headers before the body is read.

        Args:
            scope: ASGI scope.
            state: output: ``client`` (address, or index of the token) and ``media_type`` are set.

        Raises:
            ServiceError: the request is refused.
        """
        state["client"] = str((scope.get("client") or ("",))[0])
        headers = _headers_by_name(scope)
        self._check_origin(scope, headers)
        self._authenticate(scope, headers, state)
        if scope["method"] in _METHODS_WITH_BODY:
            state["media_type"] = self._check_body_headers(scope["method"], headers)

    def _check_origin(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Check path, host name and, without tokens, the site of the requesting page.

        Args:
            scope: ASGI scope.
            headers: headers of the request, by lower-case name.

        Raises:
            ServiceError: the request is refused.
        """
        # Refuse an encoded slash, which would split the decoded path.
        if b"%2f" in scope.get("raw_path", b"").lower():
            raise ServiceError(404, "http", "names in a path must not contain a slash")
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts and _host_name(host) not in self._hosts:
            raise ServiceError(
                400,
                "wrong_host",
                "the Host header is not a name of this service; use the address it listens on",
            )
        # Without tokens, refuse requests from pages of other sites. With tokens, the service may be
        # behind a proxy with another name.
        origin = headers.get(b"origin")
        if (
            origin is not None
            and not self._tokens
            and not _is_same_origin(origin.decode("latin-1"), host)
        ):
            raise ServiceError(
                403,
                "other_origin",
                "requests from pages of other sites are refused; start the service with "
                "--token-file",
            )

    def _authenticate(
        self, scope: Scope, headers: dict[bytes, bytes], state: dict[str, Any]
    ) -> None:
        """Check the bearer token of a protected path; with several tokens, set the client.

        Args:
            scope: ASGI scope.
            headers: headers of the request.
            state: output: ``client`` is set if there are several tokens.

        Raises:
            ServiceError: the token is missing or wrong.
        """
        is_protected = scope["path"].startswith(("/v1/", "/metrics"))
        if self._tokens and is_protected:
            # Compare the secret with every token in constant time, which reveals nothing of it.
            scheme, _, secret = headers.get(b"authorization", b"").partition(b" ")
            token_indices = [
                index
                for index, token in enumerate(self._tokens)
                if hmac.compare_digest(secret, token)
            ]
            if scheme.lower() != b"bearer" or not token_indices:
                raise ServiceError(
                    401,
                    "unauthorised",
                    "missing or wrong bearer token; send Authorization: Bearer TOKEN",
                )
            # With a single token, clients are distinguished by their addresses.
            if len(self._tokens) > 1:
                state["client"] = f"token {token_indices[0]}"

    def _check_body_headers(self, method: str, headers: dict[bytes, bytes]) -> str:
        """Check encoding, type and length of a body; return its media type.

        Args:
            method: method of the request: POST, PUT or PATCH.
            headers: headers of the request, by lower-case name.

        Raises:
            ServiceError: the body is refused.
        """
        # Bodies must not be compressed.
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding not in ("", "identity"):
            raise ServiceError(
                415,
                "unsupported_media_type",
                f"unsupported Content-Encoding {encoding[:80]!r}; send the body without encoding",
            )
        body_type = media_type(headers.get(b"content-type", b"").decode("latin-1"))
        # POST bodies (matrices) are JSON or Arrow, others JSON. A type is required, since browsers
        # send bodies without these types to other sites without a preflight request.
        accepted_types = (JSON, ARROW) if method == "POST" else (JSON,)
        if body_type not in accepted_types:
            raise ServiceError(
                415,
                "unsupported_media_type",
                f"unsupported Content-Type {body_type[:80]!r}; send {' or '.join(accepted_types)}",
            )
        # The length is checked before the body is read; JSON has a smaller limit.
        content_length = headers.get(b"content-length", b"")
        if not content_length.isdigit():
            raise ServiceError(411, "length_required", "missing or invalid Content-Length")
        max_bytes = min(self._max_bytes, MAX_JSON_BYTES) if body_type == JSON else self._max_bytes
        if len(content_length) > _MAX_LENGTH_DIGITS or int(content_length) > max_bytes:
            raise ServiceError(
                413,
                "too_large",
                f"the body is too large; send at most {max_bytes:,} bytes of {body_type}",
            )
        return body_type


class GuardedApp:
    """ASGI application behind a :class:`RequestGuard`.

    Args:
        app: application.
        guard: guard of its requests.
    """

    def __init__(self, app: ASGIApp, guard: RequestGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI entry point)."""
        await self._guard.handle(self._app, scope, receive, send)


def _headers_by_name(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name; the last value of repeated headers.

    Raises:
        ServiceError: a single-valued header is repeated.
    """
    counts = Counter(name for name, _ in scope["headers"])
    repeated = [name.decode() for name in _SINGLE_VALUE_HEADERS if counts[name] > 1]
    if repeated:
        raise ServiceError(
            400, "header_twice", f"the header {repeated[0]} is repeated; send it once"
        )
    return dict(scope["headers"])


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether an Origin header has the host name and port of a Host header.

    Args:
        origin: value of the Origin header, such as ``https://example.org:8443``.
        host: value of the Host header, such as ``example.org:8443``.
    """
    try:
        origin_parts = urlsplit(origin)
        default_port = {"http": 80, "https": 443}.get(origin_parts.scheme)
        host_parts = urlsplit(f"//{host}")
        return bool(origin_parts.hostname) and (
            origin_parts.hostname,
            origin_parts.port or default_port,
        ) == (
            host_parts.hostname,
            host_parts.port or default_port,
        )
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """Return the name in a Host header, without port and in lower case; "" if invalid."""
    try:
        parts = urlsplit(f"//{host}")
        # Raises for an invalid port.
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "").lower()


def _service_error(error: Exception, exchange: _Exchange) -> ServiceError:
    """Convert an unexpected exception to an error of the API, and log it.

    A storage fault before the response has begun is an expected error, which is not logged.

    Args:
        error: exception that is being handled.
        exchange: request and response.
    """
    service_error = storage_fault(error) if isinstance(error, OSError) else None
    if exchange.status or service_error is None:
        LOG.exception("failed", extra={"teal": {"request": exchange.request_id}})
        service_error = ServiceError(
            500, "internal", f"internal error, logged as {exchange.request_id}"
        )
    return service_error


def _log_entry(scope: Scope, method: str, route: str) -> dict[str, Any]:
    """Return the fields of the log that describe an answered request.

    Args:
        scope: ASGI scope.
        method: method of the request, which may be HEAD.
        route: path template of the route.
    """
    entry = {
        "request": scope["teal"]["number"],
        "client": scope["teal"]["client"],
        "method": method,
        "route": route,
        "network": scope.get("path_params", {}).get("name", ""),
        "query": _logged_query(scope),
    }
    # The handler of allocations sets the deadline.
    if "deadline_ms" in scope.get("teal", {}):
        entry["deadline_ms"] = scope["teal"]["deadline_ms"]
    return entry


def _logged_query(scope: Scope) -> str:
    """Return the query string for the log: known parameters only, cut to a maximum length."""
    parameters = parse_qsl(
        scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="replace"
    )
    return urlencode([(name, value) for name, value in parameters if name in _LOGGED_PARAMETERS])[
        :_MAX_QUERY
    ]


async def _read_body(receive: Receive, reserve: Callable[[int], None]) -> bytes:
    """Receive the whole body of a request.

    Args:
        receive: ASGI receive.
        reserve: reserves memory; called with the bytes of each received part.

    Raises:
        ServiceError: timeout, disconnect, or no memory left for bodies.
    """
    parts: list[bytes] = []
    deadline = time.perf_counter() + BODY_TIMEOUT_S
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.perf_counter()))
        except TimeoutError:
            raise ServiceError(
                408, "body_timeout", f"the body was not received within {BODY_TIMEOUT_S:g} s"
            ) from None
        if message["type"] == "http.disconnect":
            raise ServiceError(400, "disconnected", "the client has disconnected")
        # Reserve memory for this part of the body, then keep it.
        part = message.get("body", b"")
        reserve(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class _ReplayedBody:
    """ASGI receive that first returns a body that was read already, then calls the original."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        """Return the body as a single message; afterwards the original messages."""
        if self._body is None:
            return await self._receive()
        body = self._body
        self._body = None
        return {"type": "http.request", "body": body, "more_body": False}


def fault_response(error: ServiceError) -> JSONResponse:
    """Return the JSON response for an error, with Retry-After if a retry helps."""
    headers = (
        {"Retry-After": str(max(1, round(error.retry_after_s)))} if error.retry_after_s else {}
    )
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # The message may repeat invalid UTF-8 of the request.
    message = error.message.encode("utf-8", "replace").decode("utf-8")
    return JSONResponse({"error": error.code, "message": message}, error.status, headers)
