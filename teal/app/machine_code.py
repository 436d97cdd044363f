"""Makes the machine code that comes with the package: ``python -m teal.app.machine_code``.

For each level of processors (:mod:`teal.runtime.shipped_kernels`) the kernels are compiled by
tasks of :mod:`teal.app.warm_up`, in processes in which Numba compiles for that level.  The forms
are kept in a working folder, so that a second run compiles what has changed alone; those that the
tasks then load are copied, with their manifest.  The kernels of a level are called as they are
compiled: this machine must have its instructions.
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

# Machine code of earlier runs.
WORK = Path(__file__).parents[2] / "build" / "machine_code"
_CALL = """
import sys
from teal.app.warm_up import all_tasks, warm_up
names = sys.argv[1:] or all_tasks()
for number, name in enumerate(warm_up(names), 1):
    print(f"  {number} of {len(names)}: {name}", flush=True)
"""


def make(levels: Sequence[str], tasks: Sequence[str], work: Path, out: Path) -> int:
    """Compile the kernels of some tasks for some levels, and write them with their manifest.

    Args:
        levels: names of levels, all of which this machine has.
        tasks: names of tasks of :mod:`teal.app.warm_up`; none for all.
        work: folder of forms, in which those of earlier runs are found.
        out: folder of the package; what it held is removed.

    Returns:
        Number of forms.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for level in levels:
        print(f"kernels for {level}:", flush=True)
        for used in _compiled(level, tasks, work / level):
            shutil.copyfile(used, out / used.name)
    shipped_kernels.write_manifest(out)
    return len(list(out.glob("*.nbc")))


def _compiled(level: str, tasks: Sequence[str], work: Path) -> list[Path]:
    """Forms that the tasks load for one level, and their markers: kernels that other kernels alone
    call are part of those.
    """
    kernel_folder = work / "kernels"
    _call(level, tasks, work)
    after = time.time()
    time.sleep(_CLOCK_S)
    _call(level, tasks, work)
    used = [file for file in kernel_folder.iterdir() if file.stat().st_mtime > after]
    return [file for file in used if file.suffix in (".nbc", ".done")]


# Longer than the time between two ticks of a file system's clock.
_CLOCK_S = 0.1


def _call(level: str, tasks: Sequence[str], work: Path) -> None:
    """Call the kernels of the tasks, which compiles those that are missing."""
    for marker in (work / "kernels").glob("*.done"):
        marker.unlink()
    of_level = {
        **shipped_kernels.settings_of(level),
        "NUMBA_CACHE_DIR": str(work),
        "TEAL_SHIPPED_KERNELS": "0",
    }
    subprocess.run([sys.executable, "-c", _CALL, *tasks], env=os.environ | of_level, check=True)


def main() -> None:
    """Read the arguments, and make the machine code."""
    parser = argparse.ArgumentParser(prog="python -m teal.app.machine_code", description=__doc__)
    parser.add_argument(
        "--level", action="append", help="a level of processors; default: all that this machine has"
    )
    parser.add_argument(
        "--best", action="store_true", help="only the best level that this machine has"
    )
    parser.add_argument("--task", action="append", help="a task of teal warm-up; default: all")
    parser.add_argument(
        "--work", type=Path, default=WORK, help="folder of the forms of earlier runs"
    )
    parser.add_argument(
        "--out", type=Path, default=shipped_kernels.FOLDER, help="folder of the package"
    )
    arguments = parser.parse_args()
    possible = shipped_kernels.levels()
    for level in arguments.level or ():
        if level not in possible:
            parser.error(f"--level: this machine has {', '.join(possible) or 'none'}, not {level}")
    if not possible:  # kernels are compiled at their first use, as without the package's
        shutil.rmtree(arguments.out, ignore_errors=True)
        print("no machine code: the package has no level for this machine's processor")
        return
    levels = arguments.level or (possible[:1] if arguments.best else possible)
    begin = time.perf_counter()
    number = make(levels, arguments.task or (), arguments.work, arguments.out)
    size = sum(file.stat().st_size for file in arguments.out.iterdir()) / 2**20
    print(
        f"{number} forms, {size:.1f} MiB, in {time.perf_counter() - begin:.0f} s: {arguments.out}"
    )


if __name__ == "__main__":
    main()
