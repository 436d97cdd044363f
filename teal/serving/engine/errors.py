"""Errors of API calls, each with its HTTP status and code: :class:`ServiceError` and constructors
of common ones.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pydantic import ValidationError

from teal.errors import TealError
from teal.runtime.storage import is_transient

# Error code: another process holds the lock of the state folder.
LOCKED = "locked"
# Maximum share of one client in every limited resource: places, solver time.
CLIENT_SHARE = 0.75


def places_of_one(num_places: int) -> int:
    """Maximum number of places of one client."""
    return max(1, round(CLIENT_SHARE * num_places))


class ServiceError(TealError):
    """Error response to an API call.

    Args:
        status: HTTP status.
        code: error code for programs.
        message: one line for people.
        retry_after_s: seconds after which to retry; 0 if a retry does not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ServiceError], tuple[int, str, str, float]]:
        """Support pickling: errors travel between processes."""
        return type(self), (self.status, self.code, self.message, self.retry_after_s)


_MAX_LISTED_NETWORKS = 10


def not_found(name: str, registered_names: Sequence[str] = ()) -> ServiceError:
    """Error 404: unknown network; the message lists registered names."""
    listed = ", ".join(registered_names[:_MAX_LISTED_NETWORKS]) + (
        ", ..." if len(registered_names) > _MAX_LISTED_NETWORKS else ""
    )
    hint = f"; registered are {listed}" if registered_names else "; there are none"
    return ServiceError(404, "unknown_network", f"no network {name!r} is registered{hint}")


def replaced(name: str) -> ServiceError:
    """Error 409: the name was registered again during the request."""
    return ServiceError(
        409, "replaced", f"{name!r} was replaced by another registration during the request"
    )


_UNWRITABLE_REASONS = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "no space is left",
    errno.EROFS: "its folder is read-only",
    errno.EACCES: "its folder may not be written to",
    errno.EPERM: "its folder may not be written to",
}


def storage_fault(error: OSError, *, folder_is_there: bool = True) -> ServiceError | None:
    """Service error for an operating-system error of the state folder; None for one that may
    concern a single file.

    Args:
        error: error of the system.
        folder_is_there: whether the state folder exists.
    """
    if error.errno in _UNWRITABLE_REASONS:
        return ServiceError(
            507, "disk_full", f"nothing was stored: {_UNWRITABLE_REASONS[error.errno]}"
        )
    if is_transient(error) or not folder_is_there:
        reason = error.strerror or type(error).__name__
        return ServiceError(
            503, "unavailable", f"the state folder cannot be used now: {reason}", 3.0
        )
    return None


def unreadable(name: str, error: Exception) -> ServiceError:
    """Error for stored files of a network that are damaged or cannot be opened."""
    transient = storage_fault(error) if is_transient(error) else None  # type: ignore[arg-type]
    return transient or ServiceError(
        409, "failed", f"the files of {name!r} cannot be read: {str(error)[:200]}"
    )


def not_ready(name: str, after_s: float = 1.0) -> ServiceError:
    """Error 503: the paths of a network are still being computed."""
    return ServiceError(
        503, "not_ready", f"the paths of {name!r} are still being computed", after_s
    )


def overloaded(after_s: float = 1.0) -> ServiceError:
    """Error 503: the queue is full, or the deadline cannot be met."""
    return ServiceError(503, "overloaded", "too many requests are queued; retry later", after_s)


def invalid(error: ValidationError) -> ServiceError:
    """Error 422 with the first fault of a body or its parameters."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return wrong(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")


def wrong(message: str) -> ServiceError:
    """Error 422: invalid request."""
    return ServiceError(422, "invalid_request", message)


ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
ZIP = "application/zip"


def media_type(header: str) -> str:
    """Media type in a Content-Type header, without parameters; "" if there is none."""
    return header.partition(";")[0].strip().lower()
