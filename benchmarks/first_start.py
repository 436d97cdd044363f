"""Measure the first solve, the demo and the tests of a newcomer, each from a fresh clone with an
empty home.

    python benchmarks/first_start.py [--steps solve,demo,test,again,ci] [--out runs/first-start.csv]

`solve` is the wall time of the first `teal solve` of B4 after the installation, `demo` and `test`
those of `make demo` and `make test` with their set-up, `again` that of `make test` in a second
clone with the kernels and packages of the first one in the home, `ci` that of `.ci/run`.  Nothing
else should run on the machine: its load is printed.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOLVE = [".venv/bin/teal", "solve", "--topology", "b4", "--traffic", "gravity:seed=0,load=8"]
WHAT = {
    "solve": "first `teal solve` of B4, nothing compiled",
    "demo": "`make demo` with its set-up",
    "test": "`make test` with its set-up",
    "again": "`make test` with its set-up, again",
    "ci": "`.ci/run`",
}
COMMANDS = {
    "demo": ["make", "demo"],
    "test": ["make", "test"],
    "again": ["make", "test"],
    "ci": ["bash", ".ci/run"],
}


class Checkout:
    """A fresh clone of the repository, and its home folder.

    Args:
        folder: parent of the clone and the home.
        name: name of the clone's folder.
        home: name of the home's folder; two clones with one name share it.
    """

    def __init__(self, folder: Path, name: str, home: str) -> None:
        self.clone = folder / name
        self._home = folder / home
        self._home.mkdir(exist_ok=True)
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.clone)], check=True)

    def seconds(self, command: list[str], log: Path) -> float:
        """Run a command in the clone; return its wall time, s.

        Args:
            command: command line.
            log: file for its output.
        """
        # Without settings of Teal and Numba or folders of caches.
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TEAL_", "NUMBA_", "XDG_"))
        }
        environment |= {"HOME": str(self._home)}
        data = os.environ.get("TEAL_TEST_DATA")
        if data:
            environment["TEAL_TEST_DATA"] = data
        begin = time.perf_counter()
        with log.open("w") as stream:
            subprocess.run(
                command,
                cwd=self.clone,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=True,
            )
        return time.perf_counter() - begin


def measure(step: str, folder: Path, logs: Path) -> tuple[object, ...]:
    """Run one step in a fresh clone, and print its time.

    Args:
        step: key of :data:`WHAT`.
        folder: folder of the clones and homes.
        logs: folder of the outputs.

    Returns:
        row of the table, without its last column, the commit.
    """
    home = "home-test" if step == "again" else f"home-{step}"
    checkout = Checkout(folder, step, home)
    load = os.getloadavg()[0]
    # The installation is not counted in the first solve.
    if step == "solve":
        checkout.seconds(["make", ".venv/.installed-for-demo"], logs / "first-install.log")
    command = SOLVE if step == "solve" else COMMANDS[step]
    seconds = checkout.seconds(command, logs / f"first-{step}.log")
    print(f"{step:6} {seconds:7.1f} s   load before {load:.2f}", flush=True)
    return step, WHAT[step], f"{seconds:.1f}", f"{load:.2f}", os.cpu_count(), " ".join(command)


def main() -> None:
    """Measure the steps of the options, each in a fresh clone, and write their rows to the CSV
    file.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", default="solve,demo,test,again")
    parser.add_argument("--out", type=Path, default=Path("runs/first-start.csv"))
    options = parser.parse_args()
    command = ["git", "rev-parse", "--short", "HEAD"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commit = output.strip()
    logs = options.out.parent.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="first-start-", ignore_cleanup_errors=True) as folder:
        rows = [measure(step, Path(folder), logs) for step in options.steps.split(",")]
    with options.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["step", "what", "seconds", "load_before", "cores", "command", "commit"])
        writer.writerows([*row, commit] for row in rows)


if __name__ == "__main__":
    main()
