"""The forms of kernels that Teal compiles, with the CPU seconds of each.

    python benchmarks/kernels.py [--level x86-64-v4] [--out runs/kernels.csv]

All tasks of `teal warm-up` run in this process, in an empty folder.  A form is a kernel compiled
for arguments of given types; its CPU seconds are without those of the kernels that it calls and
that are compiled with it.  OUT has a row per kernel: task that compiled it first, number of forms,
CPU seconds of all of them.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Read the arguments, compile, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--level", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/kernels.csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"NUMBA_CACHE_DIR": folder, "TEAL_SHIPPED_KERNELS": "0"}
        if options.level:
            os.environ |= {"NUMBA_CPU_NAME": options.level, "NUMBA_CPU_FEATURES": ""}
        rows = compiled()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("kernel", "task", "forms", "cpu_s"))
        writer.writerows((*row[:3], f"{row[3]:.2f}") for row in rows)


def compiled() -> list[tuple[str, str, int, float]]:
    """Compile everything: kernel, task, forms and CPU seconds, the longest first."""
    from teal.app import warm_up
    from teal.runtime import kernel_cache

    totals: dict[str, tuple[str, int, float]] = {}
    running: list[
        float
    ] = []  # of each form that is being compiled, CPU seconds that are not its own
    begins: list[float] = []
    task = ""

    class Timer(kernel_cache.Announcer):
        """Adds up the CPU seconds of each form."""

        def begins(self, name: str) -> None:
            """A form begins."""
            begins.append(time.thread_time())
            running.append(0.0)

        def ends(self, name: str, seconds: float) -> None:
            """A form ends."""
            inclusive_s = time.thread_time() - begins.pop()
            exclusive_s = inclusive_s - running.pop()
            if running:
                running[-1] += inclusive_s
            first, forms, cpu_s = totals.get(name, (task, 0, 0.0))
            totals[name] = first, forms + 1, cpu_s + exclusive_s

    with kernel_cache.announcing(Timer()):
        for task in warm_up.all_tasks():
            before = sum(cpu_s for _, _, cpu_s in totals.values())
            warm_up.run_task(task)
            print(
                f"{task}: {sum(cpu_s for _, _, cpu_s in totals.values()) - before:.1f} CPU s",
                flush=True,
            )
    rows = [(name, *row) for name, row in totals.items()]
    forms = sum(row[2] for row in rows)
    cpu_s = sum(row[3] for row in rows)
    print(f"{len(rows)} kernels, {forms} forms, {cpu_s:.0f} CPU s")
    return sorted(rows, key=lambda row: -row[3])


if __name__ == "__main__":
    main()
