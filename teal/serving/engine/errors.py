"""Errors that a request can meet, each with its HTTP status."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pydantic import ValidationError

from teal.errors import TealError
from teal.runtime.storage import is_passing

LOCKED = "locked"  # code of the error that another process keeps the lock of the state folder
CLIENT_SHARE = 0.75  # of anything limited that one client may have: places, time of the engine


def places_of_one(places: int) -> int:
    """The places that one client may have."""
    return max(1, round(CLIENT_SHARE * places))


class ServiceError(TealError):
    """A request that is not answered with what it asked for.

    Args:
        status: status of HTTP.
        code: a word that clients can tell faults apart by.
        message: one line for people.
        retry_after_s: when to try again, 0 if that would not help.
    """

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.status, self.code, self.message, self.retry_after_s = (
            status,
            code,
            message,
            retry_after_s,
        )
        super().__init__(message)

    def __reduce__(self) -> tuple[type[ServiceError], tuple[int, str, str, float]]:
        """Errors travel between processes."""
        return type(self), (self.status, self.code, self.message, self.retry_after_s)


_NAMED = 10  # networks that a message names


def not_found(name: str, known: Sequence[str] = ()) -> ServiceError:
    """No network of that name, but those that are known."""
    named = ", ".join(known[:_NAMED]) + (", ..." if len(known) > _NAMED else "")
    others = f"; registered are {named}" if known else "; none is"
    return ServiceError(404, "unknown_network", f"no network {name!r} is registered{others}")


def replaced(name: str) -> ServiceError:
    """Another network has got its name while a request for the first one was on its way."""
    return ServiceError(409, "replaced", f"{name!r} was registered anew meanwhile")


_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "no space is left",
    errno.EROFS: "its folder is read-only",
    errno.EACCES: "its folder may not be written to",
    errno.EPERM: "its folder may not be written to",
}


def storage_fault(error: OSError, *, folder_is_there: bool = True) -> ServiceError | None:
    """The fault of the machine that an error of the system is; None for one that may be about a
    single file.

    Args:
        error: the error.
        folder_is_there: whether the state folder is.
    """
    if error.errno in _FULL:
        return ServiceError(507, "disk_full", f"nothing was stored: {_FULL[error.errno]}")
    if is_passing(error) or not folder_is_there:
        reason = error.strerror or type(error).__name__
        return ServiceError(
            503, "unavailable", f"the state folder cannot be used now: {reason}", 3.0
        )
    return None


def unreadable(name: str, error: Exception) -> ServiceError:
    """The stored files of a network are damaged, or cannot be opened."""
    passing = storage_fault(error) if is_passing(error) else None  # type: ignore[arg-type]
    return passing or ServiceError(
        409, "failed", f"the files of {name!r} cannot be read: {str(error)[:200]}"
    )


def not_ready(name: str, after_s: float = 1.0) -> ServiceError:
    """Its paths are still being computed."""
    return ServiceError(
        503, "not_ready", f"the paths of {name!r} are still being computed", after_s
    )


def overloaded(after_s: float = 1.0) -> ServiceError:
    """More is waiting than is worth waiting for."""
    return ServiceError(503, "overloaded", "too many requests are waiting; try again", after_s)


def invalid(error: ValidationError) -> ServiceError:
    """A body or its parameters are not what the API says: the first fault."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return wrong(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")


def wrong(message: str) -> ServiceError:
    """The request is not what it must be."""
    return ServiceError(422, "invalid_request", message)


ARROW, JSON, ZIP = "application/vnd.apache.arrow.stream", "application/json", "application/zip"


def media_type(header: str) -> str:
    """The type in a Content-Type header, without parameters; "" where there is none."""
    return header.partition(";")[0].strip().lower()
