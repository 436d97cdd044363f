"""Time to a certified gap with and without learned starts: ``teal evaluate --race`` on several
networks.

    python benchmarks/race.py --out runs/race [--data FOLDER] [--networks NAME ...] [--scheme NAME ...]

Generated traffic.  Run it on an idle machine.  Prints a table per network and load; writes
race.csv, race.png, and race-summary.csv: median seconds to the gap, and, in columns with an x,
these over the better of cold and warm PDHG. With --data also UsCarrier, Kdl and ASN from the files
that data/README.md names.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path
from typing import Any

import torch
from public_data import published
from rich.console import Console

import teal
from teal.app.instance import Instance
from teal.formats.rows import write_csv
from teal.schemes.registry import make_scheme
from teal_study.evaluation.race import (
    SITUATIONS,
    TARGETS,
    RaceRun,
    plot_race,
    race,
    time_table,
    times_to_gap,
)

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
# Networks on which an LP takes longer than 25 s for a matrix: LP schemes do not race there.
TOO_LARGE_FOR_LPS = ("Kdl", "ASN")
NETWORKS = ("topohub:sndlib/geant", "topohub:sndlib/germany50", "UsCarrier", "Kdl", "ASN")
SCHEMES = ("price-gnn", "price-gnn:rounds=6,bound_rounds=6", "price-gnn:rounds=4,bound_rounds=4")

SummaryRow = tuple[object, ...]  # network, load, scheme, seconds and speed-ups by situation


def instance(name: str, load: float, seed: int, matrices: int) -> Instance:
    """Return a network with gravity traffic and candidate paths.

    Args:
        name: source of the topology.
        load: largest utilisation if all demand takes shortest paths.
        seed: seed of the traffic.
        matrices: number of matrices of the race; one earlier matrix is added.
    """
    topology = teal.load_topology(name)
    traffic = teal.load_traffic(f"gravity:seed={seed},count={matrices + 1},load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    return Instance(
        topology, traffic, paths, teal.Objective(), None, traffic.split(), torch.device("cpu")
    )


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the files that data/README.md names")
    parser.add_argument(
        "--model", type=Path, help="folder of a PriceGNN in place of the universal one"
    )
    parser.add_argument("--scheme", nargs="*", default=SCHEMES, help="schemes of the race")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help="networks to race on")
    parser.add_argument(
        "--loads",
        nargs="*",
        type=float,
        default=(3.0, 6.0),
        help="largest utilisations on shortest paths",
    )
    parser.add_argument("--matrices", type=int, default=3, help="matrices per network and load")
    parser.add_argument(
        "--targets",
        nargs="*",
        type=float,
        default=TARGETS,
        help="certified gaps at which PDHG is timed",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and the situations")
    parser.add_argument(
        "--gap", type=float, default=0.01, help="certified gap that the tables show"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/race"), help="folder of race.csv and race.png"
    )
    return parser.parse_args()


def racing_schemes(name: str, schemes: dict[str, Any]) -> dict[str, Any]:
    """Return the schemes that race on a network; LP schemes are excluded, with a printed note, on
    networks in :data:`TOO_LARGE_FOR_LPS`.

    Args:
        name: name of the network.
        schemes: all schemes, by name.
    """
    is_too_large = name in TOO_LARGE_FOR_LPS
    excluded = [scheme for scheme in schemes if is_too_large and scheme.startswith("lp-")]
    for scheme in excluded:
        print(f"{name}: {scheme} is not run: an LP of this size takes too long")
    return {scheme: solver for scheme, solver in schemes.items() if scheme not in excluded}


def summary_rows(network: str, load: float, runs: list[RaceRun], gap: float) -> list[SummaryRow]:
    """Return a row for each scheme: its median times to the gap in each situation, s, then its
    speed-ups over PDHG; NaN where the gap was not reached.

    Args:
        network: name of the network.
        load: load of its traffic.
        runs: runs of the race on it.
        gap: certified gap.
    """
    times = {(time.scheme, time.situation): time for time in times_to_gap(runs, gap)}
    rows: list[SummaryRow] = []
    for scheme in dict.fromkeys(name for name, _ in times):
        situation_times = [times.get((scheme, situation)) for situation in SITUATIONS]
        seconds = [time.seconds if time else math.nan for time in situation_times]
        speedups = [time.speedup if time else math.nan for time in situation_times]
        rows.append((network, load, scheme, *seconds, *speedups))
    return rows


def main() -> None:
    """Run the races, print their tables, write race.csv, race-summary.csv and race.png."""
    options = parse_options()
    schemes = {name: make_scheme(name, options.model) for name in options.scheme}
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[RaceRun] = []
    summary: list[SummaryRow] = [
        ("network", "load", "scheme", *SITUATIONS, *(f"{name}, x" for name in SITUATIONS))
    ]
    for name in options.networks:
        if name in FILES and options.data is None:
            print(f"{name}: skipped, it needs --data")
            continue
        source = str(published(options.data, FILES[name])) if name in FILES else name
        solvers = racing_schemes(name, schemes)
        for load in options.loads:
            # Race on one network at one load, and print the times to the gap.
            case = instance(source, load, options.seed, options.matrices)
            case_runs = race(
                case,
                solvers,
                range(1, options.matrices + 1),
                seed=options.seed,
                targets=options.targets,
                notify=print,
            )
            print(f"\n{case.topology.name}, load {load:g}, {options.matrices} matrices")
            table = time_table(times_to_gap(case_runs, options.gap), options.gap)
            Console(width=140).print(table.of_terminal())
            # Store the results so far after each load.
            runs += case_runs
            summary += summary_rows(case.topology.name, load, case_runs, options.gap)
            summary_file = options.out / "race-summary.csv"
            with summary_file.open("w", newline="", encoding="utf-8") as stream:
                csv.writer(stream).writerows(summary)
            write_csv(options.out / "race.csv", runs)
            plot_race(options.out / "race.png", runs)
    print(options.out / "race.csv", options.out / "race.png")


if __name__ == "__main__":
    main()
