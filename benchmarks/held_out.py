"""Measure the models for any network on held-out networks: their share of the optimum, and the
relative error of their bound.

    python benchmarks/held_out.py --scheme teal|price-gnn [--model FOLDER] [--seeds 1] [--first-seed 0] [--data FOLDER] [--large]
        [--networks NAME ...] [--objective NAME] [--out FILE.csv]

For every held-out network of topohub (at least 12 nodes) and seed one gravity matrix, scaled so
that the optimum satisfies a random share of the demand between 0.6 and 0.95; the same matrix with a
flash crowd (a tenth of the demands times 10), with failures of 1 to 5% of the links, and with a
burst (one demand of the largest tenth times 10). *cut* is the share of the optimum that the model's
splits carry alone, cut to fit and not refilled. With --data also UsCarrier and Kdl, with one seed,
from the files that data/README.md names. The optimum is that of PDHG, certified to 1e-4 or closer.
--large measures ASN (with --data) and topohub:backbone/world instead, not scaled (load 4), against
an optimum that is certified to 1e-3; world needs 16 GiB.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from public_data import published
from tqdm import tqdm

import teal
from teal.app.instance import calibration_factor
from teal.network.disturbances import flash_crowd
from teal.runtime.storage import model_folder
from teal_study.learning.network_pool import group_of, network_sizes, topohub_pool

FILES = {"UsCarrier": "UsCarrier.json", "Kdl": "Kdl.json", "ASN": "ASN2k.json"}
PACKAGED_MODELS = {"teal": "flow", "price-gnn": "universal"}  # scheme: its model in the package
ZOO = ("topozoo", "sndlib")
# Number of nodes from which traffic is not scaled, and the optimum is certified to 1e-3.
MIN_LARGE_NODES = 1000
MAX_SAMPLED_NODES = 100  # nodes; larger networks of caida and gabriel are excluded
SHARES = (0.6, 0.95)  # range of the share of demand that the optimum satisfies
KINDS = ("plain", "flash crowd", "failures", "burst")
Row = tuple[str, int, str, float, float, float, float, float]  # of COLUMNS
COLUMNS = (
    "network",
    "nodes",
    "matrix",
    "of_optimum",
    "cut",
    "bound_off",
    "certified_gap",
    "seconds",
)
SUMMARY_COLUMNS = (
    "scheme",
    "networks",
    "matrix",
    "cases",
    "mean",
    "worst",
    "cut",
    "worst_cut",
    "bound_off",
    "certified_gap",
    "seconds",
)


def cases(
    topology: Any, paths: Any, traffic: Any, rng: np.random.Generator, objective: str = "total_flow"
) -> Iterator[tuple[str, Any]]:
    """Yield a problem of one matrix for each of :data:`KINDS`: scaled, with a flash crowd, with
    failed links, and with a burst.

    Args:
        topology: the network.
        paths: candidate paths of its demands.
        traffic: at least two matrices.
        rng: random generator of the scale and the changes.
        objective: objective of the problems; the demands' weights are 1, 2 or 4.

    Yields:
        the kind of matrix, and the problem.
    """
    weight = np.random.default_rng(0).choice([1.0, 2.0, 4.0], paths.num_demands)
    share = float(rng.uniform(*SHARES))
    # Scale the demand so that the optimum satisfies this share of it.
    factor = 1.0
    if topology.num_nodes < MIN_LARGE_NODES:
        factor = calibration_factor(topology, paths, traffic, np.arange(3), share)
    demand = traffic.read([1]) * factor
    crowd_demand = flash_crowd(demand, rng)
    # 1 to 5% of the links fail; one of the largest tenth of the demands is 10 times as large.
    failed_capacity = topology.capacity.copy()
    links = topology.num_links
    failed_capacity[
        rng.choice(links, max(1, round(rng.uniform(0.01, 0.05) * links)), replace=False)
    ] = 0
    burst_demand = demand.copy()
    burst_demand[0, rng.choice(np.argsort(demand[0])[-max(1, paths.num_demands // 10) :])] *= 10
    demand_of_kind = {"flash crowd": crowd_demand, "burst": burst_demand}
    for kind in KINDS:
        kind_demand = demand_of_kind.get(kind, demand)
        capacity = failed_capacity if kind == "failures" else topology.capacity
        objective_spec = teal.Objective(teal.ObjectiveName(objective))
        yield (
            kind,
            teal.Problem.create(
                topology, paths, objective_spec, kind_demand, capacity=capacity, weight=weight
            ),
        )


def measure(scheme: Any, name: str, seed: int, objective: str) -> Iterator[Row]:
    """Yield a row of :data:`COLUMNS` for each kind of matrix of one network.

    A row has the network's name and size, the kind, the scheme's share of the optimum, the share
    that its model's splits carry without refilling, the error of the bound relative to the optimum,
    the certified gap, and the time of the scheme in s.

    Args:
        scheme: allocator with a model.
        name: source of the topology.
        seed: seed of the traffic and its changes.
        objective: objective of the problems.
    """
    topology = teal.load_topology(name)
    is_large = topology.num_nodes >= MIN_LARGE_NODES
    traffic = teal.load_traffic(
        f"gravity:seed={seed},count=3,load={4 if is_large else 1}", topology
    )
    paths = teal.compute_paths(topology, traffic.pairs)
    # Compile the kernels before the timing.
    scheme.solve(teal.Problem.create(topology, paths, teal.Objective(), traffic.read([0])))
    for kind, problem in cases(topology, paths, traffic, np.random.default_rng(seed), objective):
        reference_solution = teal.solve(
            problem, gap=1e-3 if is_large else 1e-4, max_iterations=5000
        )
        optimum = float((reference_solution.value + reference_solution.bound)[0]) / 2
        # Free the exact solution, which is large for a large network.
        del reference_solution
        begin = time.perf_counter()
        allocation = scheme.solve(problem)
        seconds = time.perf_counter() - begin
        assessment = teal.assess(problem, allocation)
        share = float(assessment.value[0]) / optimum
        bound_error = float(assessment.bound[0]) / optimum - 1
        cut_share = float("nan")
        # For an objective to minimise the share is optimum / value.
        if problem.objective.rules.sense < 0:
            share = 1 / share
            bound_error = -bound_error
        else:
            cut_share = (
                float(problem.value(teal.project(problem, scheme.start(problem)[0], refill=0))[0])
                / optimum
            )
        yield (
            topology.name,
            topology.num_nodes,
            kind,
            share,
            cut_share,
            bound_error,
            float(assessment.gap[0]),
            seconds,
        )


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheme", default="teal", help="teal or price-gnn, with options")
    parser.add_argument(
        "--model", type=Path, help="folder of the model, in place of the one that Teal brings"
    )
    parser.add_argument("--data", type=Path, help="folder of the files that data/README.md names")
    parser.add_argument("--large", action="store_true", help="measure ASN and world instead")
    parser.add_argument("--objective", default="total_flow", help="objective of all problems")
    parser.add_argument(
        "--seeds", type=int, default=1, help="number of seeds of the traffic and its changes"
    )
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--networks",
        nargs="+",
        default=[],
        help="names of held-out networks of topohub; none for all",
    )
    parser.add_argument("--out", type=Path, default=Path("held_out.csv"), help="file of the rows")
    options = parser.parse_args()
    unknown = set(options.networks) - set(topohub_pool().held_out)
    if unknown:
        parser.error(f"--networks: not held out: {', '.join(sorted(unknown))}")
    return options


def network_groups(options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the networks to measure, names or files, by the group of the summary."""
    if options.networks:
        return {name: [f"topohub:{name}"] for name in options.networks}
    files = {
        name: [str(published(options.data, file))]
        for name, file in FILES.items()
        if options.data is not None
    }
    if options.large:
        large = {name: paths for name, paths in files.items() if name == "ASN"}
        return {**large, "world": ["topohub:backbone/world"]}
    held_out = topohub_pool().held_out
    groups = {"zoo, sndlib": [f"topohub:{name}" for name in held_out if group_of(name) in ZOO]}
    # Of caida and gabriel the networks of up to 100 nodes; every fourth one of gabriel.
    small = [name for name in held_out if network_sizes()[name] <= MAX_SAMPLED_NODES]
    for group, step in (("caida", 1), ("gabriel", 4)):
        groups[group] = [f"topohub:{name}" for name in small if group_of(name) == group][::step]
    return groups | {name: paths for name, paths in files.items() if name != "ASN"}


def check_not_trained_on(options: argparse.Namespace) -> None:
    """Assert that, by its model card, the model was trained on none of the held-out networks."""
    folder = model_folder(options.model or Path(PACKAGED_MODELS[options.scheme.partition(":")[0]]))
    card = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    is_held_out = set(card["held_out"]) >= set(topohub_pool().held_out)
    assert is_held_out, "the model was trained on some of these networks"


def measure_groups(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Measure all networks with a progress bar; return the rows of :data:`COLUMNS` by group."""
    scheme = teal.make_scheme(options.scheme, options.model)
    groups = network_groups(options)
    rows: dict[str, list[Row]] = {}
    with tqdm(total=sum(map(len, groups.values())), unit="network") as bar:
        for group, names in groups.items():
            rows[group] = []
            for name in names:
                seeds = options.seeds if name.startswith("topohub:") else 1
                for seed in range(options.first_seed, options.first_seed + seeds):
                    rows[group] += measure(scheme, name, seed, options.objective)
                bar.update()
    return rows


def summarise(scheme: str, rows_of_group: dict[str, list[Row]]) -> list[tuple[object, ...]]:
    """Return a row of :data:`SUMMARY_COLUMNS` for each group and kind of matrix: means, the worst
    shares, and the median time.

    Args:
        scheme: name of the scheme, for the first column.
        rows_of_group: rows of :data:`COLUMNS` by group of networks.
    """
    summary: list[tuple[object, ...]] = []
    for group, rows in rows_of_group.items():
        for kind in KINDS:
            kind_rows = [row for row in rows if row[2] == kind]
            # Columns of figures, after those of network, nodes and kind.
            columns = list(zip(*kind_rows, strict=True))[3:]
            shares, cuts, bound_errors, gaps, seconds = (list(column) for column in columns)
            summary.append(
                (
                    scheme,
                    group,
                    kind,
                    len(kind_rows),
                    statistics.mean(shares),
                    min(shares),
                    statistics.mean(cuts),
                    min(cuts),
                    statistics.mean(bound_errors),
                    statistics.mean(gaps),
                    statistics.median(seconds),
                )
            )
    return summary


def main() -> None:
    """Measure all networks, print the summary, and write the rows and the summary as CSV files."""
    options = parse_options()
    check_not_trained_on(options)
    rows = measure_groups(options)
    summary = summarise(options.scheme, rows)
    for line in summary:
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in line), sep="  ")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows(row for group_rows in rows.values() for row in group_rows)
    summary_file = options.out.with_name(f"{options.out.stem}-summary.csv")
    with summary_file.open("w", newline="") as stream:
        csv.writer(stream).writerows([SUMMARY_COLUMNS, *summary])
    print(options.out, summary_file)


if __name__ == "__main__":
    main()
