"""Incidence products: sums and maxima along paths, and sums over the paths through links.

One module per backend: torch, Numba (CPU), CUDA, and segment lists.  Entry point:
:func:`make_path_ops`.
"""

from __future__ import annotations

import warnings

import torch

from teal.errors import InputError
from teal.network import AnyPaths
from teal.network.candidate_lists import CandidateLists
from teal.pathops.base import OpsBackend, PathOps, TorchBackend
from teal.pathops.numba_backend import NumbaBackend
from teal.pathops.segment_lists import SegmentOps

__all__ = ["NumbaBackend", "OpsBackend", "PathOps", "SegmentOps", "TorchBackend", "make_path_ops"]


def make_path_ops(
    paths: AnyPaths, device: torch.device | str = "cpu", backend: str = "auto"
) -> PathOps:
    """Return the operations over ``paths`` on ``device``.

    Args:
        paths: explicit paths, or segment lists, which have a single backend.
        device: device of the tensors.
        backend: ``torch`` (any device), ``numba`` (CPU), ``cuda`` (GPU), or ``auto``: numba on the
            CPU, cuda on a GPU, torch elsewhere and, with a warning, where numba-cuda is missing.

    Raises:
        InputError: an unknown backend, or one that does not support the device.
    """
    device = torch.device(device)
    if isinstance(paths, CandidateLists):
        return SegmentOps(paths, device)
    name = (
        {"cpu": "numba", "cuda": "cuda"}.get(device.type, "torch") if backend == "auto" else backend
    )
    # Torch on any device, Numba on the CPU.
    if name == "torch":
        return PathOps(paths, TorchBackend(paths, device), device)
    if name == "numba":
        if device.type != "cpu":
            raise InputError.invalid(
                "path operations", "backend", f"numba does not run on {device}", "use auto"
            )
        return PathOps(paths, NumbaBackend(paths, device), device)
    if name != "cuda":
        raise InputError("path operations", "backend", "auto, torch, numba or cuda", repr(backend))
    # CUDA kernels; with auto, torch where they cannot run.
    import teal.runtime.cuda as cuda

    if backend == "auto" and (reason := cuda.missing()):
        warnings.warn(
            f"path operations on the GPU run in torch, which is slower: CUDA kernels need {reason}",
            stacklevel=2,
        )
        return PathOps(paths, TorchBackend(paths, device), device)
    if device.type != "cuda" and not cuda.SIMULATED:
        raise InputError.invalid(
            "path operations", "backend", f"cuda does not run on {device}", "use auto"
        )
    from teal.pathops.cuda_backend import CudaBackend

    return PathOps(paths, CudaBackend(paths, device), device)
