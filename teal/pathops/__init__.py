"""Sums and maxima along paths and over the paths through links; one file per backend."""

from __future__ import annotations

import torch

from teal.errors import InputError
from teal.network import PathSet
from teal.pathops.base import Backend, PathOps
from teal.pathops.numba_backend import NumbaBackend
from teal.pathops.torch_backend import TorchBackend

__all__ = ["Backend", "NumbaBackend", "PathOps", "TorchBackend", "make_path_ops"]


def make_path_ops(paths: PathSet, device: torch.device | str = "cpu", backend: str = "auto") -> PathOps:
    """The operations over ``paths`` on ``device``.

    Args:
        backend: ``torch`` (any device), ``numba`` (CPU), or ``auto``: numba on the CPU, else torch.

    Raises:
        InputError: an unknown backend, or one that does not run on the device.
    """
    device = torch.device(device)
    if backend == "auto":
        backend = "numba" if device.type == "cpu" else "torch"
    if backend == "torch":
        return PathOps(paths, TorchBackend(paths, device), device)
    if backend != "numba":
        raise InputError("path operations", "backend", "auto, torch or numba", repr(backend))
    if device.type != "cpu":
        raise InputError("path operations", "backend", f"one that runs on {device}", "numba")
    return PathOps(paths, NumbaBackend(paths, device), device)
