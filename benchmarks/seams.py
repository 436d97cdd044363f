"""Verify on random networks what plan, upgrade, simulate, estimate, solve, availability, admit,
expand and the service state as certain.

    python -m benchmarks.seams --out OUT [--networks 2000] [--first 0] [--workers 2]

Each network has five nodes, cables of one to three links a direction, one-way links, and sometimes
disconnected parts.  The statements are compared with linear programs over free routing in HiGHS,
with reachability by networkx and with separate code for shortest paths (`tests/seams.py`,
`tests/free_routing.py`), so that no code of Teal verifies itself.

OUT/seams.csv has a row for each network as soon as it is done: its seed, the number of statements
of each kind that were compared, and the contradictions.  An interrupted run continues.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path


def compare(seed: int) -> tuple[int, dict[str, int], list[str]]:
    """Compare the statements about one random network.

    Args:
        seed: seed of the network.

    Returns:
        the seed, the number of compared statements by kind, and the contradictions as texts.
    """
    from tests.seams import check

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            case = check(seed)
        except Exception as error:
            # A command that fails where it must not is a contradiction, too.
            return seed, {}, [f"seed {seed}: {type(error).__name__}: {error}"]
    return seed, dict(case.count), case.wrong


def read_rows(table: Path) -> dict[int, list[str]]:
    """Return the rows of an interrupted run, by seed; empty if there is no table."""
    if not table.exists():
        return {}
    with table.open(newline="") as file:
        return {int(row[0]): row for row in csv.reader(file) if row and row[0].isdecimal()}


def compare_networks(
    seeds: list[int], workers: int, table: Path, rows: dict[int, list[str]]
) -> None:
    """Compare networks in parallel; store each row in the table and in ``rows``.

    Args:
        seeds: seeds of the networks.
        workers: number of processes.
        table: seams.csv, to which rows are appended.
        rows: rows of earlier networks by seed, to which the new ones are added.
    """
    begin = time.perf_counter()
    with table.open("a", newline="") as file, ProcessPoolExecutor(workers) as pool:
        writer = csv.writer(file)
        if not rows:
            writer.writerow(["seed", "compared", "contradictions", "kinds", "texts"])
        futures = [pool.submit(compare, seed) for seed in seeds]
        for num_done, future in enumerate(as_completed(futures), 1):
            seed, count, faults = future.result()
            kinds = "; ".join(f"{kind} {number}" for kind, number in sorted(count.items()))
            row = [str(seed), str(sum(count.values())), str(len(faults)), kinds, " | ".join(faults)]
            writer.writerow(row)
            file.flush()
            rows[seed] = row
            if sys.stderr.isatty() or num_done % 50 == 0:
                seconds = time.perf_counter() - begin
                print(
                    f"{num_done} of {len(seeds)} networks, {seconds:.0f} s",
                    file=sys.stderr,
                )


def main() -> None:
    """Compare all networks, and print the number of statements by kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    parser.add_argument("--networks", type=int, default=2000, help="number of networks")
    parser.add_argument("--first", type=int, default=0, help="seed of the first network")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "seams.csv"
    rows = read_rows(table)
    all_seeds = range(options.first, options.first + options.networks)
    missing_seeds = [seed for seed in all_seeds if seed not in rows]
    compare_networks(missing_seeds, options.workers, table, rows)
    # Totals by kind of statement.
    total: Counter[str] = Counter()
    for row in rows.values():
        for part in filter(None, row[3].split("; ")):
            kind, amount = part.rsplit(" ", 1)
            total[kind] += int(amount)
    num_contradicted = sum(int(row[2]) > 0 for row in rows.values())
    print(
        f"{len(rows)} networks, {sum(total.values()):,} statements, {num_contradicted} networks with "
        "contradictions"
    )
    for kind, compared in sorted(total.items()):
        print(f"{kind:>24} {compared:8,}")


if __name__ == "__main__":
    main()
