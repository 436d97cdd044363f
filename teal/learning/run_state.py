"""The state of a training run: all that a resume needs, in one safetensors file with JSON in its
metadata.
"""

from __future__ import annotations

import contextlib
import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import Tensor

from teal.app.run_files import TRAINER
from teal.errors import InputError
from teal.nn.checkpoint import read_tensors
from teal.runtime.storage import atomic_file

_METADATA_KEY = "teal"  # under which the JSON is stored


def save_run(folder: Path, tensors: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Write the state of a run: tensors, which are copied to the CPU, and fields that JSON can
    hold.
    """
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with atomic_file(folder / TRAINER) as temporary:
        save_file(tensors, temporary, metadata={_METADATA_KEY: json.dumps(fields)})


def load_run(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_run` wrote.

    Raises:
        InputError: no state there, or a damaged one.
    """
    tensors, metadata = read_tensors(folder / TRAINER)
    try:
        fields = json.loads(metadata[_METADATA_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError(str(folder / TRAINER), "", "the state of a run", error) from None
    return tensors, fields


def load_run_of(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_run` wrote for a model of the shapes ``config``, its field of that
    name.

    Raises:
        InputError: no state there, a damaged one, or that of a model of other shapes.
    """
    tensors, fields = load_run(folder)
    if fields.get("config") != config:
        raise InputError(
            str(folder / TRAINER),
            "config",
            f"the state of a run with {config}",
            fields.get("config"),
        )
    return tensors, fields


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with ``prefix`` and a dot."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix`` and a dot, by their names without it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }


TENSORBOARD = "tensorboard"  # subfolder of the run
TRAINING_LOG = "training.csv"
_HEADER = ("step", "time", "name", "value")


class Log(Protocol):
    """A log that a trainer writes to."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Note a value at a step."""
        ...


class NoLog:
    """The log of a process that writes none."""

    def add_scalar(self, *_: object) -> None:
        """Ignore a value."""


class _Logs:
    def __init__(self, writer: Any, stream: Any, tensorboard: Any) -> None:
        self._writer = writer
        self._stream = stream
        self._tensorboard = tensorboard

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._writer.writerow((step, f"{time.time():.3f}", name, repr(float(value))))
        self._stream.flush()
        self._tensorboard.add_scalar(name, value, step)


@contextlib.contextmanager
def log_of(folder: Path, step: int) -> Iterator[Log]:
    """The log of a run from a step on; what an interrupted run wrote of later steps is dropped.

    ``training.csv`` has a row for each value: step, time (Unix, s), name, value.

    Args:
        folder: folder of the run.
        step: step that the run has reached.
    """
    file = folder / TRAINING_LOG
    rows = list[list[str]]()
    if step and file.is_file():
        with file.open(newline="", encoding="utf-8") as stream:
            rows = [
                row for row in csv.reader(stream) if len(row) == len(_HEADER) and row[0].isdigit()
            ]
    with (
        file.open("w", newline="", encoding="utf-8") as stream,
        _tensorboard(folder, step) as tensorboard,
    ):
        writer = csv.writer(stream)
        writer.writerow(_HEADER)
        writer.writerows(row for row in rows if int(row[0]) <= step)
        yield _Logs(writer, stream, tensorboard)


def _tensorboard(folder: Path, step: int) -> contextlib.AbstractContextManager[Any]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return contextlib.nullcontext(NoLog())
    writer: contextlib.AbstractContextManager[Any] = SummaryWriter(
        str(folder / TENSORBOARD), purge_step=step
    )
    return writer
