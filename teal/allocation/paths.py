"""Candidate paths and their files: `teal paths compute` and `teal paths improve`."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from teal.allocation.settings import ImproveConfig, PathsConfig
from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.path_sets import first_paths, paths_by_column_generation
from teal.formats import load_traffic, topology_of
from teal.network import PathSet, Topology
from teal.network.path_file import save_paths
from teal.network.traffic import spread
from teal.objectives import Objective, ObjectiveName
from teal.runtime.storage import atomic_file, check_out_file
from teal.solvers.columns import ColumnRound, OverAllPaths, generate_columns

# Traffic for which paths are chosen if --traffic is missing.
_GENERATED = "gravity:seed=0,count=8"


def run_compute(config: PathsConfig, notify: Callable[[str], None]) -> tuple[Topology, PathSet]:
    """Compute the candidate paths of a network; write them to ``--out`` as lists of nodes.

    Args:
        config: settings of `teal paths compute`.
        notify: prints one line of text.

    Returns:
        network, and its candidate paths.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    if config.out:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    topology = topology_of(config)
    # First paths of the pairs that have traffic, or of all pairs.
    traffic = load_traffic(config.traffic, topology, progress=True) if config.traffic else None
    paths = first_paths(
        config, topology, None if traffic is None else np.unique(traffic.pairs, axis=0)
    )
    if config.choice is not None:
        # Choose paths that minimise the largest link utilisation: the choice is independent of the
        # scale of the demands.
        objective = Objective(ObjectiveName.MAX_LINK_UTILISATION)
        traffic = traffic or load_traffic(_GENERATED, topology, progress=True)
        paths = paths_by_column_generation(
            config, topology, traffic, paths, objective, None, notify
        )
    if config.out:
        with atomic_file(config.out) as temporary:
            _write_csv(temporary, topology, paths)
    return topology, paths


def _write_csv(file: Path, topology: Topology, paths: PathSet) -> None:
    """Write a row for each path: source, target, path index k of the pair, nodes with spaces."""
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
    """Result of column generation.

    Attributes:
        initial_paths: candidate paths before column generation.
        last_round: paths, allocation and gap after the last round.
    """

    initial_paths: PathSet
    last_round: OverAllPaths


def run_improve(config: ImproveConfig, notify: Callable[[str], None]) -> Improvement:
    """Add candidate paths for some training matrices by column generation, and write all paths.

    Args:
        config: settings of `teal paths improve`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    check_out_file(config.out, (".npz",), overwrite=config.overwrite)
    instance = load_instance(config, notify)
    # Problem of some training matrices, evenly spread over time.
    rows = spread(instance.split.train, config.matrices)
    problem = instance.problem(instance.traffic.read(rows))

    def report(column_round: ColumnRound) -> None:
        """Print the figures of a round of column generation."""
        notify(
            f"{column_round.num_paths:,} paths: gap to the optimum over all paths "
            f"{100 * column_round.gap_all_paths:.2f}%; {column_round.added:,} added"
        )

    last_round = generate_columns(
        problem, target=config.gap, max_rounds=config.rounds, report=report
    )
    save_paths(config.out, last_round.paths)
    return Improvement(instance.paths, last_round)


def improve_outcome(config: ImproveConfig, notify: Notify) -> Outcome:
    """Run `teal paths improve`; return its result as text and as JSON data."""
    initial_paths, last_round = run_improve(config, notify)
    num_paths = int(last_round.paths.mask.sum())
    num_added = int(last_round.paths.mask.sum()) - int(initial_paths.mask.sum())
    gap = float(last_round.gap_all_paths.max())
    return Outcome(
        text=f"{config.out}: {num_paths:,} paths, {num_added:,} of them new, at most "
        f"{last_round.paths.num_paths} a demand; "
        f"gap to the optimum over all paths {100 * gap:.2f}%",
        data={
            "out": str(config.out),
            "paths": num_paths,
            "new_paths": num_added,
            "gap_all_paths": gap,
        },
    )


def compute_outcome(config: PathsConfig, notify: Notify) -> Outcome:
    """Run `teal paths compute`; return counts and lengths of the paths as text and as JSON data."""
    topology, paths = run_compute(config, notify)
    # (D,) number of paths of each demand, and number of demands with k paths for k = 0 .. K.
    paths_per_demand = paths.mask.sum(1)
    num_paths = int(paths_per_demand.sum())
    max_hops = int(paths.hops.max())
    demands_by_paths = [int((paths_per_demand == k).sum()) for k in range(paths.num_paths + 1)]
    # Text, and the same figures as data.
    lines = [
        f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} links, "
        f"{paths.num_demands:,} demands",
        f"paths: {num_paths:,}; longest {max_hops} links",
        *(
            f"  demands with {k} paths: {num_demands:,}"
            for k, num_demands in enumerate(demands_by_paths)
        ),
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
            "paths": num_paths,
            "longest": max_hops,
            "demands_by_paths": demands_by_paths,
            "incidences": paths.num_incidences,
            "trie_nodes": paths.trie.num_nodes,
        },
    )
