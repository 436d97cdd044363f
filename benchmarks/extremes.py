"""Verify certificates and gaps on random networks whose magnitudes span 15 decades.

    python -m benchmarks.extremes --out OUT [--problems 1000] [--gap 1e-4] [--oracle]

Each problem is a random network of 3 to 10 nodes with K = 1 to 4 candidate paths, one of the five
objectives, and one of the kinds in `tests/extremes.py`, which says what is extreme.  Each is solved
by `teal.solve` to --gap with its default limit of iterations.  The certificate is then recomputed
with Python's exact fractions from the prices alone, and with --oracle also compared with the
optimum of an explicit, scaled program in HiGHS.

OUT/extremes.csv has a row per problem; the counts are printed: false certificates (a value above
the exact bound, or a reported bound below it, by more than rounding), numbers that are NaN,
allocations that break a rule by more than 1e-6, and problems that ended above --gap.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path

from tests.extremes import check


def main() -> None:
    """Solve and verify the random problems; write their rows and print the counts of faults."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    parser.add_argument("--problems", type=int, default=1000, help="number of problems")
    parser.add_argument("--first", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--gap", type=float, default=1e-4, help="target gap")
    parser.add_argument(
        "--oracle", action="store_true", help="also solve an explicit program with HiGHS"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Rows of all problems, and counts of each kind of fault.
    counts: Counter[str] = Counter()
    rows = []
    for seed in range(arguments.first, arguments.first + arguments.problems):
        row = check(seed, arguments.gap, arguments.oracle)
        rows.append(row)
        counts.update(key for key, flag in row.items() if flag is True)
        if sys.stderr.isatty():
            print(f"\r{len(rows)} of {arguments.problems}", end="", file=sys.stderr)
    with (arguments.out / "extremes.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{arguments.problems} problems")
    for key in [key for key, flag in rows[0].items() if isinstance(flag, bool)]:
        print(f"{key:>22} {counts[key]:6}")
    print("above the gap, by kind and objective:")
    # Problems that ended above the target gap.
    for (kind, objective), count in sorted(
        Counter((r["kind"], r["objective"]) for r in rows if r["above_gap"]).items()
    ):
        total = sum(r["kind"] == kind and r["objective"] == objective for r in rows)
        print(f"  {kind:>9} {objective:<24} {count:4} of {total}")


if __name__ == "__main__":
    main()
