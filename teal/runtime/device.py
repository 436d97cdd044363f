"""Selection of torch devices by name, with errors that name the missing requirement."""

from __future__ import annotations

import torch

from teal.errors import InputError

# Linear models of the seconds of a solve to a certified gap of 1%, on an H200 and on one of 16
# threads of the same machine: fitted to UsCarrier and Kdl (146,000 and 4.0 million entries of a
# scan); docs/figures/gpu.csv.
_GPU_OVERHEAD_S = 18e-3
_GPU_S_PER_ENTRY = 5e-10
_CPU_OVERHEAD_S = 8.7e-3
_CPU_S_PER_ENTRY = 2.8e-7


def _missing_gpu() -> str:
    """Return the reason why torch has no GPU, for an error message."""
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is a build without CUDA; install one with CUDA "
            "(pytorch.org)"
        )
    return (
        f"torch {torch.__version__} finds no usable GPU; check with nvidia-smi that the driver is "
        "installed"
    )


def is_faster_on_gpu(entries: int, threads: int) -> bool:
    """Return whether a GPU is predicted to solve a program faster than the CPU.

    Below about 34,000 entries per thread, waiting for the host dominates on the GPU.

    Args:
        entries: number of trie nodes and path slots, the entries that an iteration of PDHG reads
            once.
        threads: number of CPU threads.
    """
    cpu_seconds = _CPU_OVERHEAD_S + _CPU_S_PER_ENTRY * entries / threads
    return _GPU_OVERHEAD_S + _GPU_S_PER_ENTRY * entries < cpu_seconds


def pick_device(name: str) -> torch.device:
    """Return the torch device of ``auto``, ``cpu`` or ``cuda``.

    Raises:
        InputError: another name, or cuda without a usable GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError("--device", "", "auto, cpu or cuda", repr(name))
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError.invalid("--device", "", _missing_gpu())
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError("--device", "", "auto, cpu, cuda or cuda:N", repr(name)) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        last_gpu = torch.cuda.device_count() - 1
        raise InputError("--device", "", f"a GPU from cuda:0 to cuda:{last_gpu}", repr(name))
    return device
