"""`teal paths compute` and `teal paths improve`: candidate paths, and their files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teal.allocation.settings import ImproveConfig, PathsConfig
from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.path_sets import chosen_paths, first_paths
from teal.formats import load_traffic, topology_of
from teal.network import PathSet, Topology
from teal.network.path_file import save_paths
from teal.network.traffic import spread
from teal.objectives import Objective, ObjectiveName
from teal.runtime.storage import atomic_file, check_out_file
from teal.solvers.columns import ColumnRound, OverAllPaths, improve

# Matrices for which paths are chosen without --traffic.
_GENERATED = "gravity:seed=0,count=8"


def run_compute(config: PathsConfig, notify: Callable[[str], None]) -> tuple[Topology, PathSet]:
    """Compute the paths and, if there is an output file, write them node by node.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    if config.out:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    topology = topology_of(config)
    traffic = load_traffic(config.traffic, topology, progress=True) if config.traffic else None
    paths = first_paths(
        config, topology, None if traffic is None else np.unique(traffic.pairs, axis=0)
    )
    if config.choice is not None:
        # This objective is independent of the scale of the demands.
        objective = Objective(ObjectiveName.MAX_LINK_UTILISATION)
        traffic = traffic or load_traffic(_GENERATED, topology, progress=True)
        paths = chosen_paths(config, topology, traffic, paths, objective, None, notify)
    if config.out:
        with atomic_file(config.out) as temporary:
            _write_csv(temporary, topology, paths)
    return topology, paths


def _write_csv(file: Path, topology: Topology, paths: PathSet) -> None:
    """One row a path: source, target, number, and the nodes along it, separated by spaces."""
    names = topology.node_names
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["source", "target", "k", "nodes"])
        for d, (source, target) in enumerate(paths.pairs):
            for k in np.flatnonzero(paths.mask[d]).tolist():
                nodes = [
                    names[source],
                    *(names[topology.link_target[link]] for link in paths.links_of(d, k)),
                ]
                writer.writerow([names[source], names[target], k, " ".join(nodes)])


class Improvement(NamedTuple):
    """The paths before column generation, and its last round."""

    before: PathSet
    last: OverAllPaths


def run_improve(config: ImproveConfig, notify: Callable[[str], None]) -> Improvement:
    """Add paths for some training matrices, and write all paths.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    check_out_file(config.out, (".npz",), overwrite=config.overwrite)
    instance = load_instance(config, notify)
    rows = spread(instance.split.train, config.matrices)
    problem = instance.problem(instance.traffic.read(rows))

    def report(column_round: ColumnRound) -> None:
        notify(
            f"{column_round.num_paths:,} paths: gap to the optimum over all paths "
            f"{100 * column_round.gap_all_paths:.2f}%; {column_round.added:,} added"
        )

    last = improve(problem, target=config.gap, max_rounds=config.rounds, report=report)
    save_paths(config.out, last.paths)
    return Improvement(instance.paths, last)


def improve_outcome(config: ImproveConfig, notify: Notify) -> Outcome:
    """`teal paths improve`."""
    before, last = run_improve(config, notify)
    count = int(last.paths.mask.sum())
    added = int(last.paths.mask.sum()) - int(before.mask.sum())
    gap = float(last.gap_all_paths.max())
    return Outcome(
        text=f"{config.out}: {count:,} paths, {added:,} of them new, at most "
        f"{last.paths.num_paths} a demand; "
        f"gap to the optimum over all paths {100 * gap:.2f}%",
        data={"out": str(config.out), "paths": count, "new_paths": added, "gap_all_paths": gap},
    )


def compute_outcome(config: PathsConfig, notify: Notify) -> Outcome:
    """`teal paths compute`."""
    topology, paths = run_compute(config, notify)
    # Number and length of the paths.
    by_demand = paths.mask.sum(1)
    count = int(by_demand.sum())
    longest = int(paths.hops.max())
    demands = [int((by_demand == k).sum()) for k in range(paths.num_paths + 1)]
    lines = [
        f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} links, "
        f"{paths.num_demands:,} demands",
        f"paths: {count:,}; longest {longest} links",
        *(f"  demands with {k} paths: {number:,}" for k, number in enumerate(demands)),
        (
            f"pairs of a path and a link: {paths.num_incidences:,}; nodes of the path trie: "
            f"{paths.trie.num_nodes:,}"
        ),
    ]
    return Outcome(
        text="\n".join(lines),
        written=str(config.out or ""),
        data={
            "topology": topology.name,
            "demands": paths.num_demands,
            "paths": count,
            "longest": longest,
            "demands_by_paths": demands,
            "incidences": paths.num_incidences,
            "trie_nodes": paths.trie.num_nodes,
        },
    )
