"""Does learning win?  The race of ``teal evaluate --race`` on several networks, generated traffic.

    python benchmarks/race.py --out runs/race [--data FOLDER] [--networks NAME ...] [--scheme NAME ...]

Needs a machine with nothing else to do.  A table a network and load; race.csv and race.png of all.  With --data also
UsCarrier, Kdl and ASN from the files that data/README.md names.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

import teal
from teal.evaluation.instance import Instance
from teal.evaluation.race import TARGETS, RaceRun, race, times_to_gap
from teal.formats.rows import write_csv
from teal.reports.race import plot_race, render_times_to_gap
from teal.schemes.registry import make_scheme

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
NETWORKS = ("topohub:sndlib/geant", "topohub:sndlib/germany50", "UsCarrier", "Kdl", "ASN")
SCHEMES = ("price-gnn", "price-gnn:rounds=6,bound_rounds=6", "price-gnn:rounds=4,bound_rounds=4")


def instance(name: str, load: float, seed: int, matrices: int) -> Instance:
    """A network under gravity traffic whose largest utilisation on shortest paths is ``load``."""
    topology = teal.load_topology(name)
    traffic = teal.load_traffic(f"gravity:seed={seed},count={matrices + 1},load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    return Instance(topology, traffic, paths, teal.Objective(), None, traffic.split(), torch.device("cpu"))


def main() -> None:
    """Race, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of UsCarrier.json and the like")
    parser.add_argument("--model", type=Path, help="in place of the universal one")
    parser.add_argument("--scheme", nargs="*", default=SCHEMES)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--loads", nargs="*", type=float, default=(3.0, 6.0))
    parser.add_argument("--matrices", type=int, default=3)
    parser.add_argument("--targets", nargs="*", type=float, default=TARGETS, help="gaps to go on to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=0.01, help="of the tables")
    parser.add_argument("--out", type=Path, default=Path("runs/race"))
    options = parser.parse_args()
    schemes = {name: make_scheme(name, options.model) for name in options.scheme}
    options.out.mkdir(parents=True, exist_ok=True)
    laps: list[RaceRun] = []
    for name in options.networks:
        if name in FILES and options.data is None:
            print(f"{name}: left out, it needs --data")
            continue
        for load in options.loads:
            case = instance(
                str(options.data / FILES[name]) if name in FILES else name, load, options.seed, options.matrices
            )
            own = race(
                case, schemes, range(1, options.matrices + 1), seed=options.seed, targets=options.targets, notify=print
            )
            print(f"\n{case.topology.name}, load {load:g}, {options.matrices} matrices")
            Console(width=140).print(render_times_to_gap(times_to_gap(own, options.gap), options.gap))
            laps += own
            write_csv(options.out / "race.csv", laps)
            plot_race(options.out / "race.png", laps)
    print(options.out / "race.csv", options.out / "race.png")


if __name__ == "__main__":
    main()
