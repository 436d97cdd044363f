"""State of a training run for a resume (a safetensors file with JSON metadata), and its log.

The log is ``training.csv``, and TensorBoard if it is installed.
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

# Key of the JSON in the metadata of the file.
_METADATA_KEY = "teal"


def save_run(folder: Path, tensors: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Write the state of a run atomically.

    Args:
        folder: folder of the run.
        tensors: tensors by name, on any device.
        fields: JSON values by name.
    """
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with atomic_file(folder / TRAINER) as temporary:
        save_file(tensors, temporary, metadata={_METADATA_KEY: json.dumps(fields)})


def load_run(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and fields of a run's state.

    Raises:
        InputError: the folder has no state, or a damaged one.
    """
    tensors, metadata = read_tensors(folder / TRAINER)
    try:
        fields = json.loads(metadata[_METADATA_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError.invalid(
            str(folder / TRAINER), "", f"not the state of a training run ({error})"
        ) from None
    return tensors, fields


def load_run_of(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the state of a run, and check that its model has the shapes ``config``.

    Args:
        folder: folder of the run.
        config: expected value of the field ``config``.

    Raises:
        InputError: the folder has no state, a damaged one, or that of a model with other shapes.
    """
    tensors, fields = load_run(folder)
    if fields.get("config") != config:
        raise InputError.invalid(
            str(folder / TRAINER),
            "config",
            f"the run has a model with {fields.get('config')}, the command one with {config}",
            "resume with the settings of the run",
        )
    return tensors, fields


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names ``PREFIX.NAME``."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with names ``PREFIX.NAME``, under the names ``NAME``."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in tensors.items()
        if name.startswith(f"{prefix}.")
    }


# Subfolder of the run for TensorBoard.
TENSORBOARD = "tensorboard"
TRAINING_LOG = "training.csv"
_HEADER = ("step", "time", "name", "value")


class Log(Protocol):
    """Interface of a log of a training run, which takes the values of scalars by step."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write the value of the scalar ``name`` at a step."""
        ...


class NoLog:
    """Log that ignores all values, for processes that write no files."""

    def add_scalar(self, *_: object) -> None:
        """Ignore the arguments: nothing is written."""


class _CsvAndTensorboardLog:
    """Log that writes to ``training.csv`` and TensorBoard.

    Args:
        writer: CSV writer of ``training.csv``.
        stream: text stream of that file.
        tensorboard: writer of TensorBoard, or a log without effect.
    """

    def __init__(self, writer: Any, stream: Any, tensorboard: Any) -> None:
        self._writer = writer
        self._stream = stream
        self._tensorboard = tensorboard

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self._writer.writerow((step, f"{time.time():.3f}", name, repr(float(value))))
        self._stream.flush()
        self._tensorboard.add_scalar(name, value, step)


@contextlib.contextmanager
def open_log(folder: Path, step: int) -> Iterator[Log]:
    """Open the log of a run at a step, and delete rows of later steps from an interrupted run.

    ``training.csv`` has a row for each value: step, time (Unix, s), name, value.

    Args:
        folder: folder of the run.
        step: number of steps so far.
    """
    file = folder / TRAINING_LOG
    earlier_rows = list[list[str]]()
    if step and file.is_file():
        with file.open(newline="", encoding="utf-8") as stream:
            earlier_rows = [
                row for row in csv.reader(stream) if len(row) == len(_HEADER) and row[0].isdigit()
            ]
    with (
        file.open("w", newline="", encoding="utf-8") as stream,
        _tensorboard(folder, step) as tensorboard,
    ):
        writer = csv.writer(stream)
        writer.writerow(_HEADER)
        writer.writerows(row for row in earlier_rows if int(row[0]) <= step)
        yield _CsvAndTensorboardLog(writer, stream, tensorboard)


def _tensorboard(folder: Path, step: int) -> contextlib.AbstractContextManager[Any]:
    """Open a TensorBoard log in ``folder``, without entries after ``step``.

    If TensorBoard is not installed, the log ignores all values.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return contextlib.nullcontext(NoLog())
    writer: contextlib.AbstractContextManager[Any] = SummaryWriter(
        str(folder / TENSORBOARD), purge_step=step
    )
    return writer
