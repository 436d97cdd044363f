"""Build the compiled kernels that come with the package: ``python -m teal.app.machine_code``.

For each processor level (:mod:`teal.runtime.shipped_kernels`), tasks of :mod:`teal.app.warm_up`
compile the kernels in processes in which Numba compiles for that level.  A specialisation is a
kernel compiled for given argument types.  Specialisations stay in a working folder, so that a
second run compiles only changed kernels.  Those that the tasks load are copied to the package, with
a manifest.  This machine must support the instructions of a level, since its kernels are called.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from teal.runtime import shipped_kernels

# Working folder with the compiled kernels of earlier runs.
WORK = Path(__file__).parents[2] / "build" / "machine_code"
_WARM_UP_SCRIPT = """
import sys
from teal.app.warm_up import all_tasks, warm_up
names = sys.argv[1:] or all_tasks()
for number, name in enumerate(warm_up(names), 1):
    print(f"  {number} of {len(names)}: {name}", flush=True)
"""


def make(levels: Sequence[str], tasks: Sequence[str], work: Path, out: Path) -> int:
    """Compile the kernels of some tasks for some processor levels, and write them with a manifest.

    Args:
        levels: names of processor levels that this machine supports.
        tasks: names of tasks of :mod:`teal.app.warm_up`; () for all.
        work: working folder with the compiled kernels of earlier runs.
        out: output folder; its present content is removed.

    Returns:
        Number of written files of compiled kernels, one for each specialisation.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for level in levels:
        print(f"kernels for {level}:", flush=True)
        for file in _compiled_files(level, tasks, work / level):
            shutil.copyfile(file, out / file.name)
    shipped_kernels.write_manifest(out)
    return len(list(out.glob("*.nbc")))


def _compiled_files(level: str, tasks: Sequence[str], work: Path) -> list[Path]:
    """Compile the kernels of the tasks for one level; return the files of the specialisations that
    the tasks load, and the tasks' markers.

    A kernel that only other kernels call is part of their machine code, and needs no file.

    Args:
        level: name of the processor level.
        tasks: names of tasks; () for all.
        work: working folder of the level.
    """
    kernel_folder = work / "kernels"
    # Compile missing specialisations.  A second run then loads all of them, which updates the
    # modification times of their files; others are left over from earlier versions.
    _call(level, tasks, work)
    compiled_at = time.time()
    time.sleep(_CLOCK_S)
    _call(level, tasks, work)
    loaded = [file for file in kernel_folder.iterdir() if file.stat().st_mtime > compiled_at]
    return [file for file in loaded if file.suffix in (".nbc", ".done")]


# Longer than the time resolution of file systems.
_CLOCK_S = 0.1


def _call(level: str, tasks: Sequence[str], work: Path) -> None:
    """Call the kernels of the tasks in a process that compiles missing ones for a level.

    Args:
        level: name of the processor level.
        tasks: names of tasks; () for all.
        work: working folder of the level, which becomes Numba's cache folder.
    """
    for marker in (work / "kernels").glob("*.done"):
        marker.unlink()
    level_environment = {
        **shipped_kernels.settings_of(level),
        "NUMBA_CACHE_DIR": str(work),
        "TEAL_SHIPPED_KERNELS": "0",
    }
    subprocess.run(
        [sys.executable, "-c", _WARM_UP_SCRIPT, *tasks],
        env=os.environ | level_environment,
        check=True,
    )


def main() -> None:
    """Parse the arguments, and build the compiled kernels of the package."""
    parser = argparse.ArgumentParser(prog="python -m teal.app.machine_code", description=__doc__)
    parser.add_argument(
        "--level",
        action="append",
        help="a processor level; repeat for more; default: all levels that this machine supports",
    )
    parser.add_argument(
        "--best", action="store_true", help="only the best level that this machine supports"
    )
    parser.add_argument(
        "--task", action="append", help="a task of teal warm-up; repeat for more; default: all"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=WORK,
        help="working folder, with compiled kernels of earlier runs that are reused",
    )
    parser.add_argument(
        "--out", type=Path, default=shipped_kernels.FOLDER, help="output folder of the package"
    )
    # Refuse levels that this machine does not support.
    arguments = parser.parse_args()
    possible = shipped_kernels.levels()
    for level in arguments.level or ():
        if level not in possible:
            supported = ", ".join(possible) or "none"
            parser.error(f"--level: this machine supports the levels {supported}, not {level}")
    # Without a level, kernels are compiled at their first use.
    if not possible:
        shutil.rmtree(arguments.out, ignore_errors=True)
        print("no compiled kernels: there is no processor level for this machine")
        return
    # Compile for the levels, and report number and size of the files.
    levels = arguments.level or (possible[:1] if arguments.best else possible)
    begin = time.perf_counter()
    num_kernels = make(levels, arguments.task or (), arguments.work, arguments.out)
    size_mib = sum(file.stat().st_size for file in arguments.out.iterdir()) / 2**20
    print(
        f"{num_kernels} compiled kernels, {size_mib:.1f} MiB, in {time.perf_counter() - begin:.0f} "
        f"s: {arguments.out}"
    )


if __name__ == "__main__":
    main()
