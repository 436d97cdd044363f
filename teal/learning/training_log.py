"""The course of a training run: a table, and TensorBoard's files where that package is there."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

TENSORBOARD = "tensorboard"  # subfolder of the run
TRAINING_LOG = "training.csv"
_HEADER = ("step", "time", "name", "value")


class Log(Protocol):
    """What a trainer writes to."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Note a value at a step."""
        ...


class NoLog:
    """The log of a process that writes none."""

    def add_scalar(self, *_: object) -> None:
        """Ignore a value."""


class _Logs:
    def __init__(self, writer: Any, stream: Any, tensorboard: Any) -> None:
        self._writer, self._stream, self._tensorboard = writer, stream, tensorboard

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._writer.writerow((step, f"{time.time():.3f}", name, repr(float(value))))
        self._stream.flush()
        self._tensorboard.add_scalar(name, value, step)


@contextlib.contextmanager
def log_of(folder: Path, step: int) -> Iterator[Log]:
    """The log of a run from a step on; what an interrupted run wrote of later steps is dropped.

    ``training.csv`` has a row for each value: step, time (Unix, s), name, value.

    Args:
        folder: of the run.
        step: that the run has reached.
    """
    file, kept = folder / TRAINING_LOG, list[list[str]]()
    if step and file.is_file():
        with file.open(newline="", encoding="utf-8") as stream:
            kept = [row for row in csv.reader(stream) if len(row) == len(_HEADER) and row[0].isdigit()]
    with file.open("w", newline="", encoding="utf-8") as stream, _tensorboard(folder, step) as tensorboard:
        writer = csv.writer(stream)
        writer.writerow(_HEADER)
        writer.writerows(row for row in kept if int(row[0]) <= step)
        yield _Logs(writer, stream, tensorboard)


def _tensorboard(folder: Path, step: int) -> contextlib.AbstractContextManager[Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return contextlib.nullcontext(NoLog())
    writer: contextlib.AbstractContextManager[Any] = SummaryWriter(str(folder / TENSORBOARD), purge_step=step)
    return writer
