"""The manifest of a run: settings, versions of the packages, machine."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

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


def write_manifest(path: Path, settings: Any, machines: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write ``manifest.json``: every setting, the versions, the machine.

    Args:
        path: of the file.
        settings: a dataclass.
        machines: from :func:`describe_machine`, of each part of a resumed run; none for this machine.
    """
    manifest = {"settings": dataclasses.asdict(settings), **(machines[0] if machines else describe_machine())}
    if len(machines) > 1:
        manifest["resumed"] = list(machines[1:])
    path.write_text(json.dumps(manifest, indent=2, default=str) + "\n", encoding="utf-8")


def describe_machine() -> dict[str, Any]:
    """Versions of the packages, processor, threads, GPU."""
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
