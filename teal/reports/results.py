"""The files of a run: a row of a CSV and a Parquet file for each thing measured, and a manifest of how it was made."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from teal.errors import InputError

_PACKAGES = (
    "teal-te",
    "torch",
    "torch-geometric",
    "numba",
    "numpy",
    "scipy",
    "cvxpy",
    "highspy",
    "gurobipy",
    "ortools",
)
_KINDS = {"str": str, "int": int, "float": float}
_T = TypeVar("_T")


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """Write dataclasses of one kind, at least one; numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [f.name for f in dataclasses.fields(rows[0])])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def write_parquet(path: Path, rows: Sequence[Any]) -> None:
    """The same as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = [f.name for f in dataclasses.fields(rows[0])]
    pq.write_table(pa.table({name: [getattr(row, name) for row in rows] for name in names}), path)


def read_csv(path: Path, kind: type[_T]) -> list[_T]:
    """Read what :func:`write_csv` wrote of dataclasses of that ``kind``, of strings, integers and floats.

    Raises:
        InputError: no such file, or one of something else.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return [from_text(kind, line) for line in csv.DictReader(stream)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(str(path), "", f"a table of {kind.__name__.lower()}s", str(error)) from None


def from_text(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """A dataclass of strings, integers and floats from their texts, or themselves."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: _KINDS[str(field.type)](values[field.name]) for field in fields})


def write_manifest(path: Path, settings: Any, parts: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write ``manifest.json``: every setting, the versions, the machine; of a resumed run the machine of each part."""
    manifest = {"settings": dataclasses.asdict(settings), **(parts[0] if parts else describe_machine())}
    if len(parts) > 1:
        manifest["resumed"] = list(parts[1:])
    path.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")


def describe_machine() -> dict[str, Any]:
    """Versions, processor, threads, GPU."""
    installed: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return {
        "versions": installed,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
