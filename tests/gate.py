"""A gate at a method in other processes: a test decides how far they get, and is told when they are
there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Set
from pathlib import Path

OPEN = 10**9  # calls that an open gate allows
# After so many seconds a condition will not come true any more.  On two cores at half speed, which
# other tests use too, a new process of the service was seen to take five minutes.
PATIENCE_S = 1_200.0

# Python imports this module at the start of every process.  It waits for the import of one module
# and wraps one method.
_SITECUSTOMIZE = """
import os, pathlib, sys, time
from importlib.machinery import PathFinder

FOLDER, MODULE, CLASS, METHOD = {arguments!r}
FOLDER = pathlib.Path(FOLDER)

def install(module):
    owner, calls = getattr(module, CLASS), 0
    method = getattr(owner, METHOD)

    def gated(*arguments, **options):
        nonlocal calls
        calls += 1
        marker = FOLDER / f"calls-{{os.getpid()}}"
        temporary = marker.with_name(f"new-{{os.getpid()}}")
        temporary.write_text(str(calls))
        temporary.replace(marker)
        while calls > int((FOLDER / "limit").read_text()):
            time.sleep(0.01)
        return method(*arguments, **options)

    setattr(owner, METHOD, gated)

class Finder:
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            install(module)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def wait_until(condition: Callable[[], bool], what: str, log: Path | None = None) -> None:
    """Wait for a condition; fails with ``what``, and the end of a log, after ``PATIENCE_S``
    seconds.
    """
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            text = log.read_text()[-5_000:] if log else ""
            raise AssertionError(f"{what}\n{text}")
        time.sleep(0.02)


class Gate:
    """In every process with the environment ``environment``, call number ``limit`` + 1 of a method
    waits.

    Each process counts its own calls.

    Args:
        folder: a new folder, for the files through which the processes and the test communicate.
        module, owner, method: name of the module, of the class in it, and of the method of the
            class.
        limit: calls that each process may make.

    Attributes:
        environment: for the processes.
    """

    def __init__(self, folder: Path, module: str, owner: str, method: str, limit: int) -> None:
        self._folder = folder.resolve()
        self._folder.mkdir()
        self.allow(limit)
        code = _SITECUSTOMIZE.format(arguments=(str(self._folder), module, owner, method))
        (self._folder / "sitecustomize.py").write_text(code)
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{self._folder}:{Path(__file__).parents[1]}",
        }

    def allow(self, limit: int) -> None:
        """Change the number of calls that each process may make."""
        temporary = self._folder / "new-limit"
        temporary.write_text(str(limit))
        temporary.replace(self._folder / "limit")
        self._limit = limit

    def calls(self) -> dict[int, int]:
        """How many calls each process has begun, by process ID."""
        return {
            int(file.name.partition("-")[2]): int(file.read_text())
            for file in self._folder.glob("calls-*")
        }

    def wait_for(
        self, count: int, command: subprocess.Popen[str], earlier: Set[int] = frozenset()
    ) -> set[int]:
        """Wait until processes wait at the gate; fails with the output of the command if it ends
        before.

        Args:
            count: number of processes.
            command: that has started them, or that is the process itself.
            earlier: process IDs that do not count.

        Returns:
            the process IDs.
        """

        def have_arrived() -> bool:
            assert command.poll() is None, command.communicate()
            return len(self.waiting() - earlier) == count

        wait_until(have_arrived, f"{count} processes at the gate")
        return self.waiting() - earlier

    def waiting(self) -> set[int]:
        """Process IDs of those that wait, or have waited, at the gate."""
        return {process for process, calls in self.calls().items() if calls > self._limit}
