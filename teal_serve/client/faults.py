"""Exceptions of the clients: one class for each kind of failed request.

:func:`checked` raises them for error responses, :func:`as_faults` for failed connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from teal.errors import TealError


class ServiceFault(TealError):
    """Failed request to the service; the subclasses name the causes.

    Attributes:
        status: HTTP status; 0 if there was no response.
        code: error code of the service, such as unknown_network.
        retry_after_s: seconds to wait before a retry; 0 if a retry does not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
        super().__init__(f"{code} ({status}): {message}")


class InvalidRequest(ServiceFault):
    """Malformed request, or one that does not fit the network."""


class Unauthorised(ServiceFault):
    """Missing or wrong token."""


class UnknownNetwork(ServiceFault):
    """Unknown name of a network."""


class NotReady(ServiceFault):
    """Request for a network whose candidate paths are still being computed."""


class Overloaded(ServiceFault):
    """Too many requests are queued, or no solver is available; retry after ``retry_after_s``."""


class LateMeasurement(ServiceFault):
    """Measured matrix that is older than the newest one of the service."""


class Unreachable(ServiceFault):
    """Missing response of the service: connection refused, broken or timed out."""


_FAULT_TYPES: dict[str, type[ServiceFault]] = {
    "invalid_request": InvalidRequest,
    "unauthorised": Unauthorised,
    "unknown_network": UnknownNetwork,
    "not_ready": NotReady,
    "not_later": LateMeasurement,
    "overloaded": Overloaded,
    "unavailable": Overloaded,
}


@contextlib.contextmanager
def as_faults() -> Iterator[None]:
    """Convert connection errors of httpx and content that JSON cannot hold to a ServiceFault."""
    try:
        yield
    except (httpx.RequestError, httpx.InvalidURL) as error:
        raise Unreachable(0, "unreachable", str(error) or type(error).__name__) from None
    # JSON cannot represent NaN and invalid strings.
    except ValueError as error:
        raise InvalidRequest(0, "invalid_request", str(error)) from None


def checked(response: httpx.Response) -> httpx.Response:
    """Return a successful response; raise the ServiceFault subclass of an error response."""
    if response.is_success:
        return response
    try:
        error = response.json()
        code = error["error"]
        message = error["message"]
    except (ValueError, LookupError, TypeError):
        code = None
    # The response is not from the service, but for example from a proxy.
    if not isinstance(code, str):
        code = "http"
        message = response.text[:200]
    fault_type = _FAULT_TYPES.get(code, ServiceFault)
    raise fault_type(
        response.status_code, code, message, _retry_after_s(response.headers.get("Retry-After", ""))
    )


def _retry_after_s(retry_after: str) -> float:
    """Parse a Retry-After header, seconds or a date (RFC 9110, 10.2.3); return s, 0 if invalid."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return 0.0
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
