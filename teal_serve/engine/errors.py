"""Errors of API calls, with HTTP status and error code: :class:`ServiceError`, and functions that
build the common ones.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pydantic import ValidationError

from teal.deprecated import with_old_names
from teal.errors import TealError
from teal.runtime.storage import is_transient

# Error code of a state folder whose lock another process holds.
LOCKED = "locked"
# Maximum share of one client of every limited resource: places in the queue, solver time.
CLIENT_SHARE = 0.75


def max_places_per_client(num_places: int) -> int:
    """Return how many of all ``num_places`` places of a queue one client may hold, at least 1."""
    return max(1, round(CLIENT_SHARE * num_places))


class ServiceError(TealError):
    """Error response to an API call.

    Args:
        status: HTTP status.
        code: error code for programs.
        message: one line of text for people.
        retry_after_s: seconds after which to retry; 0 if a retry does not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ServiceError], tuple[int, str, str, float]]:
        """Support pickling, since Ray passes errors between processes."""
        return type(self), (self.status, self.code, self.message, self.retry_after_s)


# Maximum number of names in the message about an unknown network.
_MAX_LISTED_NETWORKS = 10


def not_found(name: str, registered_names: Sequence[str] = ()) -> ServiceError:
    """Return error 404: the network is unknown.

    Args:
        name: unknown name.
        registered_names: registered names, which the message lists.
    """
    listed_names = ", ".join(registered_names[:_MAX_LISTED_NETWORKS]) + (
        ", ..." if len(registered_names) > _MAX_LISTED_NETWORKS else ""
    )
    hint = (
        f"; registered are {listed_names}"
        if registered_names
        else "; no network is registered at all"
    )
    return ServiceError(404, "unknown_network", f"no network {name!r} is registered{hint}")


def replaced(name: str) -> ServiceError:
    """Return error 409: the name was registered again, or deleted, during the request."""
    return ServiceError(
        409,
        "replaced",
        f"network {name!r} was replaced by another registration during the request; send it again",
    )


# Reasons why the state folder cannot be written to, by error number.
_UNWRITABLE_REASONS = {
    errno.ENOSPC: "no space is left on the disk of the state folder",
    errno.EDQUOT: "the disk quota of the state folder is used up",
    errno.EROFS: "the state folder is read-only",
    errno.EACCES: "no permission to write to the state folder",
    errno.EPERM: "no permission to write to the state folder",
}


def storage_fault(error: OSError, *, folder_is_there: bool = True) -> ServiceError | None:
    """Convert an error of the operating system to an error of the API.

    Args:
        error: error of an access to the state folder.
        folder_is_there: whether the state folder exists.

    Returns:
        507 for a folder that cannot be written to, 503 for a transient error or a missing folder;
        None for an error that may concern a single file.
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
    """Return the error for stored files of a network that are damaged or cannot be opened."""
    # A transient fault of the file system gets status 503 or 507, any other fault 409.
    transient = storage_fault(error) if is_transient(error) else None  # type: ignore[arg-type]
    return transient or ServiceError(
        409, "failed", f"the files of network {name!r} cannot be read: {str(error)[:200]}"
    )


def not_ready(name: str, after_s: float = 1.0) -> ServiceError:
    """Return error 503: the paths of a network are being computed; retry after ``after_s``."""
    return ServiceError(
        503, "not_ready", f"the paths of network {name!r} are still being computed", after_s
    )


def overloaded(after_s: float = 1.0) -> ServiceError:
    """Return error 503: the queue is full, or deadlines are at risk; retry after ``after_s``."""
    return ServiceError(503, "overloaded", "too many requests are queued; retry later", after_s)


def invalid(error: ValidationError) -> ServiceError:
    """Return error 422 with the first fault that Pydantic found in a body or its parameters."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return invalid_request(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")


def invalid_request(message: str) -> ServiceError:
    """Return error 422: the request is invalid, for the reason and remedy in ``message``."""
    return ServiceError(422, "invalid_request", message)


# Media types of bodies.
ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
ZIP = "application/zip"


def media_type(header: str) -> str:
    """Return the media type in a Content-Type header, without parameters; "" if it is empty."""
    return header.partition(";")[0].strip().lower()


__getattr__ = with_old_names(__name__, globals())
