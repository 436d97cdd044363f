"""Work in other processes that takes its time, so that there is a middle of it."""

from __future__ import annotations

import os
from pathlib import Path

# Read by every Python process at its start.
_SLOW = """
import sys, threading, time
def slow(module, kind, method, seconds):
    while not hasattr(sys.modules.get(module), kind):
        time.sleep(0.01)
    own = getattr(sys.modules[module], kind)
    work = getattr(own, method)
    setattr(own, method, lambda *arguments: (time.sleep(seconds), work(*arguments))[1])
threading.Thread(target=slow, args={arguments!r}, daemon=True).start()
"""


def slowed(folder: Path, module: str, kind: str, method: str, seconds: float) -> dict[str, str]:
    """An environment in whose processes each call of a method takes so much longer.

    Args:
        folder: for the file that does it.
        module, kind, method: which one, of which class.
    """
    (folder / "sitecustomize.py").write_text(_SLOW.format(arguments=(module, kind, method, seconds)))
    return {**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"}
