"""Processes that a test starts, and that end with it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import psutil

from tests.gate import PATIENCE_S


@contextlib.contextmanager
def running(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    output: int | IO[str] = subprocess.PIPE,
    errors: int | IO[str] | None = None,
    stdin: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process and, at the end, no process: it and every process that it started is killed if it
    still runs.

    Args:
        command: program and arguments.
        environment: of the process; without it, that of the tests.
        folder: in which it runs; without it, that of the tests.
        output: for what it prints.
        errors: for what it prints to its standard error; without it, ``output``.
        stdin: ``subprocess.PIPE`` for a process that reads.
    """
    stderr = output if errors is None else errors
    process = subprocess.Popen(
        command,
        text=True,
        stdin=stdin,
        stdout=output,
        stderr=stderr,
        env=environment or dict(os.environ),
        cwd=folder,
    )
    try:
        yield process
    finally:
        family = descendants(process)
        process.kill()
        process.wait()
        kill(family)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command of this checkout, run to its end in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        command,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
        cwd=folder,
        env=environment,
        check=False,
    )


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that a process has started, and those that they have started."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(family: Sequence[psutil.Process]) -> None:
    """Kill those of the processes that still run, and wait for their end."""
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family)
