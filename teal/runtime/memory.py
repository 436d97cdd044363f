"""How much memory is free, asked before a large allocation is made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from teal.errors import InputError

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_RESERVED_SHARE = 0.05  # of the free memory: left for everything that the estimates do not count


def available() -> int:
    """Bytes that this process may still take, within the memory of the machine and the limit of its container."""
    free = _machine_free()
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        return min(
            free, int(limit) - int(used) + (int(cache[1]) if cache else 0)
        )  # the kernel frees this file cache on demand
    except (OSError, ValueError):  # no cgroup, or "max"
        return free


def _machine_free() -> int:
    """Bytes that the operating system counts as available."""
    try:
        import psutil
    except ImportError:  # psutil is optional on Linux
        return int(re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)[0]) << 10
    return int(psutil.virtual_memory().available)


def available_on(device: torch.device) -> int:
    """Bytes that tensors on ``device`` may still take; memory that torch has cached but does not use counts as free."""
    if device.type != "cuda":
        return available()
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


def max_batch(where: str, item_bytes: int, count: int, device: torch.device, remedy: str, fixed_bytes: int = 0) -> int:
    """How many of ``count`` items, ``item_bytes`` each, fit on ``device`` at once; at least 1.

    Args:
        where: what is being done, for the message.
        item_bytes: bytes of one item.
        count: items in all.
        device: where they go.
        remedy: what would reduce the need, for the message.
        fixed_bytes: bytes that are needed besides the items if not all of them fit at once.

    Raises:
        InputError: not even one item fits.
    """
    require(where, item_bytes, remedy, device)
    free = int((1 - _RESERVED_SHARE) * available_on(device))
    return count if count * item_bytes <= free else max(1, (free - fixed_bytes) // max(item_bytes, 1))


def describe(needed: int) -> str:
    """A number of bytes as text: ``1.5 GiB`` or ``20 MiB``."""
    return f"{needed / _GIB:.1f} GiB" if needed >= _GIB else f"{needed / (1 << 20):.0f} MiB"


def require(where: str, needed: int, remedy: str, device: torch.device | None = None) -> None:
    """Raise InputError if ``needed`` bytes are not free on ``device``; ``remedy`` says what would reduce the need."""
    free = available() if device is None else available_on(device)
    if needed > (1 - _RESERVED_SHARE) * free:
        where_to = "" if device is None else f" on {device}"
        raise InputError(
            where, "memory", f"about {describe(needed)} of memory{where_to}; {remedy}", f"{describe(free)} free"
        )
