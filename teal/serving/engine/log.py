"""The log of requests: a line of JSON each."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from teal.errors import InputError
from teal.serving.engine.errors import ServiceError

LOG = logging.getLogger("teal.serving")


class JsonLines(logging.Formatter):
    """A record as a line of JSON: when, how grave, what, and what stands in its ``teal``."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; an exception's trace is a text in it."""
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
    """Log that work in the background has failed, which nobody waits for.

    Args:
        network: name of the network.
        event: work that failed.
        error: reason; its trace is logged where it is a fault of the program.
    """
    is_foreseen = isinstance(error, InputError | OSError | ServiceError)
    LOG.warning(
        event,
        exc_info=None if is_foreseen else error,
        extra={"teal": {"network": network, "error": str(error)[:200]}},
    )


def log_to(path: Path) -> None:
    """Append what the service has to say to a file."""
    os.close(
        os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    )  # for the service's user alone
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
