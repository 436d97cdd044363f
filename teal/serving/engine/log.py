"""JSON log of the service: one line per request and per internal error."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from teal.errors import InputError
from teal.serving.engine.errors import ServiceError

LOG = logging.getLogger("teal.serving")


class JsonLines(logging.Formatter):
    """Formatter of JSON lines: time, level, event and the fields of the record's ``teal``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; the traceback of an exception is a string in it."""
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "teal", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def warn(network: str, event: str, error: BaseException) -> None:
    """Log a failure of background work.

    Args:
        network: name of the network.
        event: failed work.
        error: reason; its traceback is logged unless the error is an expected one.
    """
    is_expected = isinstance(error, InputError | OSError | ServiceError)
    LOG.warning(
        event,
        exc_info=None if is_expected else error,
        extra={"teal": {"network": network, "error": str(error)[:200]}},
    )


def log_to(path: Path) -> None:
    """Append the log to a file, readable by the user of the service only."""
    # Create the file with private permissions.
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
