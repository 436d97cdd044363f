"""Runs the mutants: each is put into a copy of the tree, where its test must then fail.

    python -m tests.mutants                      # all
    python -m tests.mutants problem --out x.csv  # those whose file's path contains a text; the table as a file

Printed for each: killed; survives; excused (survives, and its entry says why that is accepted);
slow (the test took too long, which does not count as killed); stale (its text no longer occurs
exactly once); broken (the test fails without the mutant, too).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.house import PACKAGES

ROOT = Path(__file__).parents[2]
_COPIED = (
    *PACKAGES,
    "baselines",
    "tests",
    "benchmarks",
    "deploy",
    "docs",
    "data",
    "models",
)  # folders
_MAX_TEST_S = 300.0  # of one run of a test


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        file: that it is put into.
        old: text that occurs once in the file.
        new: text in its place.
        fault: what goes wrong for a user.
        test: file or test that must notice it.
        excuse: why it may survive; ``""`` if it may not.
    """

    file: str
    old: str
    new: str
    fault: str
    test: str
    excuse: str = ""


def load() -> list[Mutant]:
    """All mutants of this folder."""
    files = sorted(Path(__file__).parent.glob("*.toml"))
    return [
        Mutant(**entry) for file in files for entry in tomllib.loads(file.read_text())["mutant"]
    ]


class Copy:
    """A copy of the tree, in which one test runs at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in ROOT.iterdir():
            if file.is_file():
                shutil.copy(file, folder)

    def passes(self, test: str) -> bool | None:
        """Whether a test passes; None if it takes too long."""
        environment = os.environ | {"PYTHONPATH": str(self.folder)}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "",
            *test.split(),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                timeout=_MAX_TEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        return done.returncode == 0

    def verdict(self, mutant: Mutant) -> str:
        """What becomes of a mutant."""
        file = self.folder / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            return "stale"
        file.write_text(text.replace(mutant.old, mutant.new))
        try:
            passes = self.passes(mutant.test)
        finally:
            file.write_text(text)
        if passes is None:
            return "slow"
        if passes:
            return "excused" if mutant.excuse else "survives"
        return "killed"


def main() -> int:
    """Run them, print the table; 1 if a mutant survives without an excuse, is stale or has a broken
    test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", nargs="?", default="", help="only mutants whose file's path contains this"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="copies of the tree, each with a test at a time"
    )
    parser.add_argument("--out", type=Path, help="a CSV file for the table")
    options = parser.parse_args()
    mutants = [mutant for mutant in load() if options.part in mutant.file]
    verdicts: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        copies = threading.local()

        def copy() -> Copy:
            if not hasattr(copies, "own"):
                copies.own = Copy(Path(tempfile.mkdtemp(dir=folder)))
            own: Copy = copies.own
            return own

        tests = sorted({mutant.test for mutant in mutants})
        passed = dict(zip(tests, pool.map(lambda test: copy().passes(test), tests), strict=True))
        for mutant, verdict in zip(
            mutants,
            pool.map(
                lambda mutant: copy().verdict(mutant) if passed[mutant.test] else "broken", mutants
            ),
            strict=True,
        ):
            verdicts[mutant] = verdict
            sys.stdout.write(f"{verdict:9} {mutant.file}: {mutant.fault}\n")
            sys.stdout.flush()
    if options.out:
        with options.out.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["verdict", "file", "test", "fault", "excuse"])
            writer.writerows([v, m.file, m.test, m.fault, m.excuse] for m, v in verdicts.items())
    counts = Counter(verdicts.values())
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    sys.stdout.write(f"{summary} of {len(mutants)}\n")
    return 0 if set(counts) <= {"killed", "excused"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
