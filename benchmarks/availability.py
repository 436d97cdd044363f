"""Availability: promises and their gaps, and what measuring takes: the table of docs/availability.md.

    python benchmarks/availability.py --data FOLDER --out runs/availability.csv [NETWORK ...]

FOLDER holds the files that data/README.md names.  Every cable is up in 99.9% of the time.  Promises
count all failures; measured are all states with at most two cables down, on UsCarrier one.

    python benchmarks/availability.py --tail --data FOLDER --out runs/tail-loss.csv [NETWORK ...]

The CVaR of the largest loss over the same states, at most a minute each, of demands without a path
too, or not.

    python benchmarks/availability.py --expand --data FOLDER --out runs/expansion.csv

The least capacity to buy for the demands of one matrix at loads and availabilities.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import scipy.optimize  # noqa: F401  so that the first program does not pay for its loading
from public_data import published

import teal
from teal_availability import (
    components_of,
    expand,
    guarantee_common_fraction,
    guarantee_min_cvar,
    guarantee_min_loss,
    merge_states,
    most_probable_states,
    peak_requests,
    survival_probabilities,
)
from teal_availability.measure import measure
from teal_availability.routing import Igp, PathSplits, Routing, Solved, Tunnels, default_splits

NETWORKS = {  # topology and the largest number of cables down at once
    "B4": ("b4", 2),
    "IBM": ("topohub:topozoo/Ibm", 2),
    "ATT": ("topohub:topozoo/AttMpls", 2),
    "Germany50": ("topohub:sndlib/germany50", 2),
    "UsCarrier": ("topologies/UsCarrier.json", 1),
}
AVAILABILITY = 0.999
EXPANSIONS = ((1.0, 0.9999), (3.0, 0.999), (3.0, 0.9999))  # load and availability


def main() -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--data", type=Path, required=True, help="folder of the published files")
    parser.add_argument("--tail", action="store_true", help="the CVaR of the largest loss")
    parser.add_argument("--expand", action="store_true", help="the capacity to buy")
    parser.add_argument("--out", type=Path, default=Path("runs/availability.csv"))
    options = parser.parse_args()
    rows = []
    for network in options.networks:
        name, max_failed_components = NETWORKS[network]
        is_file = name.endswith(".json")
        topology = teal.load_topology(published(options.data, name) if is_file else name)
        if options.expand:
            rows += [{"network": network} | row for row in _expansion_rows(topology)]
        elif options.tail:
            rows += [
                {"network": network} | row for row in _tail_rows(topology, max_failed_components)
            ]
        else:
            rows.append({"network": network} | _row(topology, max_failed_components))
        pd.DataFrame(rows).to_csv(options.out, index=False)
        print(pd.DataFrame(rows[-1:]).T.to_string(), flush=True)
    return 0


def _problem(topology: teal.Topology) -> teal.Problem:
    """The matrix of a network and four maximally disjoint paths a demand."""
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=1", topology)
    method = teal.PathMethod.MAXIMALLY_DISJOINT
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=4, method=method)
    return teal.Problem.create(topology, paths, "total_flow", traffic.read([0]))


def _tail_rows(topology: teal.Topology, max_failed_components: int) -> Iterator[dict[str, object]]:
    """The CVaR of the largest loss, with and without demands that are cut."""
    problem = _problem(topology)
    components = components_of(topology, cable_availability=0.999)
    states = most_probable_states(components.unavailability, 0.0, max_failed_components)
    patterns = survival_probabilities(problem, components)
    effects = merge_states(problem, components, states)
    for counts_disconnected in (True, False):
        begin = time.perf_counter()
        result = guarantee_min_cvar(
            problem,
            patterns,
            effects,
            AVAILABILITY,
            seconds=60,
            counts_disconnected=counts_disconnected,
        )
        yield {
            "states": len(states),
            "demands": problem.paths.num_demands,
            "cut": "counts" if counts_disconnected else "does not count",
            "cvar": 1 - result.value,
            "cvar_at_least": 1 - result.bound,
            "not_listed": effects.unlisted_probability / (1 - AVAILABILITY),
            "seconds": time.perf_counter() - begin,
        }


def _expansion_rows(topology: teal.Topology) -> Iterator[dict[str, object]]:
    """The least capacity to buy, for each load and availability."""
    for load, availability in EXPANSIONS:
        traffic = teal.load_traffic(f"gravity:seed=0,count=1,load={load}", topology)
        requests = peak_requests(topology, traffic, availability)
        begin = time.perf_counter()
        result = expand(topology, requests)
        yield {
            "load": f"{load:g}",
            "availability": availability,
            "promises": len(requests),
            "impossible": sum(not row.way for row in result.reservations),
            "cost": result.cost,
            "of_network": result.cost / (topology.capacity.sum() / 2),
            "gap": result.gap,
            "seconds": time.perf_counter() - begin,
        }


def _row(topology: teal.Topology, max_failed_components: int) -> dict[str, float]:
    problem = _problem(topology)
    components = components_of(topology, cable_availability=0.999)
    states = most_probable_states(components.unavailability, 0.0, max_failed_components)
    splits = default_splits(problem)
    row: dict[str, float] = {
        "demands": problem.paths.num_demands,
        "cables": len(components),
        "states": len(states),
    }
    begin = time.perf_counter()
    patterns = survival_probabilities(problem, components)
    loss = guarantee_min_loss(problem, patterns)
    row |= {
        "least_loss": loss.value,
        "least_loss_gap": loss.gap,
        "least_loss_s": time.perf_counter() - begin,
    }
    begin = time.perf_counter()
    patterns = survival_probabilities(problem, components)
    with contextlib.suppress(teal.InputError):  # more patterns than its program takes
        share = guarantee_common_fraction(problem, patterns, AVAILABILITY)
        row |= {
            "common_share": share.value,
            "common_share_gap": share.gap,
            "common_share_s": time.perf_counter() - begin,
            "left_out": int(share.left_out.sum()),
        }
    routings: dict[str, Callable[[], Routing]] = {
        "igp": lambda: Igp(problem, "hops"),
        "tunnels": lambda: Tunnels(problem, PathSplits.from_candidate_paths(problem.paths, splits)),
        "solved": lambda: Solved(problem, 1e-3),
    }
    for name, make in routings.items():
        begin = time.perf_counter()
        result = measure(name, [make()], [problem], components, states)
        row |= {
            name: float(result.mean.low),
            f"{name}_at_most": float(result.mean.high),
            f"{name}_s": time.perf_counter() - begin,
        }
    return row


if __name__ == "__main__":
    sys.exit(main())
