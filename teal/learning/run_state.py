"""The state of a training run: all that a resume needs, in one safetensors file with JSON in its metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from teal.errors import InputError
from teal.nn.checkpoint import read_tensors
from teal.runtime.storage import atomic_file

RUN = "trainer.safetensors"
_METADATA_KEY = "teal"  # under which the JSON is stored


def save_run(folder: Path, tensors: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Write the state of a run: tensors, which are copied to the CPU, and fields that JSON can hold."""
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    with atomic_file(folder / RUN) as temporary:
        save_file(tensors, temporary, metadata={_METADATA_KEY: json.dumps(fields)})


def load_run(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_run` wrote.

    Raises:
        InputError: no state there, or a damaged one.
    """
    tensors, metadata = read_tensors(folder / RUN)
    try:
        fields = json.loads(metadata[_METADATA_KEY])
    except (KeyError, json.JSONDecodeError) as error:
        raise InputError(str(folder / RUN), "", "the state of a run", error) from None
    return tensors, fields


def load_run_of(folder: Path, config: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_run` wrote for a model of the shapes ``config``, its field of that name.

    Raises:
        InputError: no state there, a damaged one, or that of a model of other shapes.
    """
    tensors, fields = load_run(folder)
    if fields.get("config") != config:
        raise InputError(str(folder / RUN), "config", f"the state of a run with {config}", fields.get("config"))
    return tensors, fields


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under names that begin with ``prefix`` and a dot."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of the tensors whose names begin with ``prefix`` and a dot, without it."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
