"""Measure bandwidth guarantees, their gaps and the time of measuring availability, for the table of
docs/availability.md.

    python benchmarks/availability.py --data FOLDER --out runs/availability.csv [NETWORK ...]

FOLDER holds the files that data/README.md names.  Every cable is up in 99.9% of the time.
Guarantees count all failures; availability is measured over all states with at most two cables
down, on UsCarrier one.

    python benchmarks/availability.py --tail --data FOLDER --out runs/tail-loss.csv [NETWORK ...]

This computes the conditional value at risk (CVaR) of the largest loss over the same states, with
the losses of disconnected demands and without them, in at most a minute each.

    python benchmarks/availability.py --expand --data FOLDER --out runs/expansion.csv

This computes the least capacity to buy for the demands of one matrix, at several loads and
availabilities.
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

# Topology, and the largest number of cables that are down at once.
NETWORKS = {
    "B4": ("b4", 2),
    "IBM": ("topohub:topozoo/Ibm", 2),
    "ATT": ("topohub:topozoo/AttMpls", 2),
    "Germany50": ("topohub:sndlib/germany50", 2),
    "UsCarrier": ("topologies/UsCarrier.json", 1),
}
AVAILABILITY = 0.999
EXPANSIONS = ((1.0, 0.9999), (3.0, 0.999), (3.0, 0.9999))  # load of the traffic, and availability


def main() -> int:
    """Measure the networks; write the table that the options ask for, after each network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--data", type=Path, required=True, help="folder of the published files")
    parser.add_argument("--tail", action="store_true", help="the CVaR of the largest loss")
    parser.add_argument("--expand", action="store_true", help="the capacity to buy")
    parser.add_argument("--out", type=Path, default=Path("runs/availability.csv"))
    options = parser.parse_args()
    # Rows of each network; the table is stored again after each.
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
            rows.append({"network": network} | _guarantee_row(topology, max_failed_components))
        pd.DataFrame(rows).to_csv(options.out, index=False)
        print(pd.DataFrame(rows[-1:]).T.to_string(), flush=True)
    return 0


def _problem(topology: teal.Topology) -> teal.Problem:
    """Return the total-flow problem of a gravity matrix over four maximally disjoint paths each."""
    traffic = teal.load_traffic("gravity:seed=0,count=1,load=1", topology)
    method = teal.PathMethod.MAXIMALLY_DISJOINT
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=4, method=method)
    return teal.Problem.create(topology, paths, "total_flow", traffic.read([0]))


def _tail_rows(topology: teal.Topology, max_failed_components: int) -> Iterator[dict[str, object]]:
    """Yield the row of a network's smallest CVaR of the largest loss, with disconnected demands and
    without them.

    Args:
        topology: the network.
        max_failed_components: largest number of cables that are down at once.
    """
    problem = _problem(topology)
    components = components_of(topology, cable_availability=0.999)
    states = most_probable_states(components.unavailability, 0.0, max_failed_components)
    survival_states = survival_probabilities(problem, components)
    effects = merge_states(problem, components, states)
    for counts_disconnected in (True, False):
        begin = time.perf_counter()
        result = guarantee_min_cvar(
            problem,
            survival_states,
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
    """Yield a row for each load and availability: the least cost of the added capacity, absolute
    and relative to half of the network's capacity, with its gap and time.
    """
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


def _guarantee_row(topology: teal.Topology, max_failed_components: int) -> dict[str, float]:
    """Return the row of a network: the least guaranteed loss and the largest common fraction with
    their gaps and times, and the measured availability of three routings.

    Args:
        topology: the network.
        max_failed_components: largest number of cables that are down at once.
    """
    problem = _problem(topology)
    components = components_of(topology, cable_availability=0.999)
    states = most_probable_states(components.unavailability, 0.0, max_failed_components)
    splits = default_splits(problem)
    row: dict[str, float] = {
        "demands": problem.paths.num_demands,
        "cables": len(components),
        "states": len(states),
    }
    # The least loss that can be guaranteed. Each time includes computing the survival states, so
    # both blocks compute them.
    begin = time.perf_counter()
    survival_states = survival_probabilities(problem, components)
    loss = guarantee_min_loss(problem, survival_states)
    row |= {
        "least_loss": loss.value,
        "least_loss_gap": loss.gap,
        "least_loss_s": time.perf_counter() - begin,
    }
    begin = time.perf_counter()
    survival_states = survival_probabilities(problem, components)
    # The call raises InputError if there are too many survival states for its program.
    with contextlib.suppress(teal.InputError):
        fraction = guarantee_common_fraction(problem, survival_states, AVAILABILITY)
        row |= {
            "common_share": fraction.value,
            "common_share_gap": fraction.gap,
            "common_share_s": time.perf_counter() - begin,
            "left_out": int(fraction.is_excluded.sum()),
        }
    # Availability of shortest paths, of tunnels with fixed splits, and of a new optimum per state.
    routings: dict[str, Callable[[], Routing]] = {
        "igp": lambda: Igp(problem, "hops"),
        "tunnels": lambda: Tunnels(problem, PathSplits.from_candidate_paths(problem.paths, splits)),
        "solved": lambda: Solved(problem, 1e-3),
    }
    for name, make_routing in routings.items():
        begin = time.perf_counter()
        result = measure(name, [make_routing()], [problem], components, states)
        row[name] = float(result.mean.low)
        row[f"{name}_at_most"] = float(result.mean.high)
        row[f"{name}_s"] = time.perf_counter() - begin
    return row


if __name__ == "__main__":
    sys.exit(main())
