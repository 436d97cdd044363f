"""JSON log of the service: one line per request and per internal error."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from teal.errors import InputError
from teal_serve.engine.errors import ServiceError

LOG = logging.getLogger("teal_serve")


class JsonLines(logging.Formatter):
    """Log formatter with a JSON object per record: time, level, event, and fields in ``teal``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line; the traceback of an exception is its field ``trace``."""
        log_fields = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        log_fields |= getattr(record, "teal", {})
        if record.exc_info:
            log_fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(log_fields)


def warn(network: str, event: str, error: BaseException) -> None:
    """Log a failure of background work as a warning.

    Args:
        network: name of the network.
        event: failed work, such as "paths not added".
        error: exception; its traceback is logged unless it is an expected one (invalid input,
            operating system, service).
    """
    is_expected = isinstance(error, InputError | OSError | ServiceError)
    LOG.warning(
        event,
        exc_info=None if is_expected else error,
        extra={"teal": {"network": network, "error": str(error)[:200]}},
    )


def log_to(path: Path) -> None:
    """Append the log to a file that only the user of the service can read."""
    # Create the file with private permissions before the handler opens it.
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
