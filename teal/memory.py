"""Memory that is asked for before it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from teal.errors import InputError

if TYPE_CHECKING:
    import torch

_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_KEEP_FREE = 0.05  # of what is there


def available() -> int:
    """Bytes that this process may still take: of the machine, and of its container if that has a limit."""
    free = _of_machine()
    try:
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        return min(free, int(limit) - int(used) + (int(cache[1]) if cache else 0))  # cache is given back on demand
    except (OSError, ValueError):  # no cgroup, or "max"
        return free


def _of_machine() -> int:
    try:
        import psutil
    except ImportError:  # Linux tells without it
        return int(re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)[0]) << 10
    return int(psutil.virtual_memory().available)


def available_on(device: torch.device) -> int:
    """The same for tensors on ``device``; what torch keeps for itself but does not use counts as free."""
    if device.type != "cuda":
        return available()
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def fitting(where: str, each: int, most: int, device: torch.device, remedy: str, besides: int = 0) -> int:
    """How many things of ``each`` bytes, up to ``most``, fit on ``device`` at once.

    Args:
        besides: bytes that are wanted as well if not all fit at once.

    Raises:
        InputError: not even one; ``remedy`` says what would.
    """
    require(where, each, remedy, device)
    room = int((1 - _KEEP_FREE) * available_on(device))
    return most if most * each <= room else max(1, (room - besides) // max(each, 1))


def describe(needed: int) -> str:
    """``1.5 GiB``."""
    return f"{needed / _GIB:.1f} GiB" if needed >= _GIB else f"{needed / (1 << 20):.0f} MiB"


def require(where: str, needed: int, remedy: str, device: torch.device | None = None) -> None:
    """Raise InputError if ``needed`` bytes are not to be had; ``remedy`` says what would reduce them."""
    free = available() if device is None else available_on(device)
    if needed > (1 - _KEEP_FREE) * free:
        where_to = "" if device is None else f" on {device}"
        raise InputError(
            where, "memory", f"about {describe(needed)} of memory{where_to}; {remedy}", f"{describe(free)} free"
        )
