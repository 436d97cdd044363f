"""The files of an evaluation: one CSV row for each scheme and matrix, and a manifest of how it was made."""

from __future__ import annotations

import csv
import dataclasses
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from teal.evaluation import Row
from teal.race import Lap

_PACKAGES = ("teal-te", "torch", "torch-geometric", "numba", "numpy", "cvxpy", "highspy", "gurobipy")


def write_csv(path: Path, rows: Sequence[Row | Lap]) -> None:
    """Write rows of one kind, at least one; numbers in full precision."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [f.name for f in dataclasses.fields(rows[0])])
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in rows)


def read_csv(path: Path) -> list[Row]:
    """Read what :func:`write_csv` wrote."""
    kinds = {"str": str, "int": int, "float": float}
    with path.open(newline="", encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = [
            {field.name: kinds[str(field.type)](line[field.name]) for field in dataclasses.fields(Row)}
            for line in csv.DictReader(stream)
        ]
    return [Row(**row) for row in rows]


def write_manifest(path: Path, settings: Any) -> None:
    """Write ``manifest.json``: every setting, the versions, the machine."""
    installed: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    manifest = {
        "settings": dataclasses.asdict(settings),
        "versions": installed,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    path.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")
