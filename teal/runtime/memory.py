"""Free memory of machine, container and GPU, checked before large allocations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from teal.errors import InputError

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30
# Root of cgroup v2; in a container it has the limits of the container.
_CGROUP = Path("/sys/fs/cgroup")
# Fraction of the free memory held in reserve for allocations that estimates omit.
_RESERVED_FRACTION = 0.05


def available() -> int:
    """Return the bytes that this process may still allocate, given machine and container limits."""
    free = _machine_free()
    # Limit and use of the container (cgroup v2).
    try:
        limit, used = (
            (_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current")
        )
        cache = re.search(
            r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE
        )
        # inactive_file: file cache that counts as used and that the kernel frees on demand.
        return min(free, int(limit) - int(used) + (int(cache[1]) if cache else 0))
    except (OSError, ValueError):
        # No cgroup, or the limit "max".
        return free


def _machine_free() -> int:
    """Return the bytes of main memory that the operating system reports as available."""
    try:
        import psutil
    except ImportError:
        # psutil is optional on Linux.
        return (
            int(
                re.findall(
                    r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE
                )[0]
            )
            << 10
        )
    return int(psutil.virtual_memory().available)


def available_on(device: torch.device) -> int:
    """Return the bytes that tensors on ``device`` may still use, including torch's unused cache."""
    if device.type != "cuda":
        return available()
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def max_batch(
    operation: str,
    item_bytes: int,
    count: int,
    device: torch.device,
    remedy: str,
    fixed_bytes: int = 0,
) -> int:
    """Return the number of items that fit on a device at once, from 1 to ``count``.

    Args:
        operation: name of the operation, for the message.
        item_bytes: bytes of one item.
        count: total number of items.
        device: device of the items.
        remedy: way to reduce the required memory, for the message.
        fixed_bytes: additional bytes for processing in several batches, such as the results of
            all batches.

    Raises:
        InputError: a single item does not fit.
    """
    require(operation, item_bytes, remedy, device)
    # Free bytes less the reserve; all items at once need no additional bytes.
    free = int((1 - _RESERVED_FRACTION) * available_on(device))
    return (
        count if count * item_bytes <= free else max(1, (free - fixed_bytes) // max(item_bytes, 1))
    )


def describe(num_bytes: int) -> str:
    """Return a number of bytes as text: ``1.5 GiB``, or ``20 MiB`` below 1 GiB."""
    return (
        f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / (1 << 20):.0f} MiB"
    )


def require(operation: str, needed: int, remedy: str, device: torch.device | None = None) -> None:
    """Raise InputError unless an operation fits into the free memory.

    Args:
        operation: name of the operation, for the message.
        needed: required bytes.
        remedy: way to reduce the required memory, for the message.
        device: device of the allocation; None for main memory.
    """
    free = available() if device is None else available_on(device)
    if needed > (1 - _RESERVED_FRACTION) * free:
        location = "" if device is None else f" on {device}"
        usable = int((1 - _RESERVED_FRACTION) * free)
        raise InputError.invalid(
            operation,
            "memory",
            f"about {describe(needed)} are needed{location}, but only {describe(usable)} are "
            "usable",
            remedy,
        )
