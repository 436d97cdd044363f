"""The candidate paths of a registered network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from teal.formats import load_traffic
from teal.network import PathMethod, PathSet, PathWeight, Topology, all_pairs, compute_paths
from teal.network.path_file import load_paths
from teal.network.paths import search_key
from teal.objectives import Objective
from teal.serving.engine.requests import NetworkSpec
from teal.solvers.candidates import choose_paths, representative_matrices

# Matrices for which paths are chosen, as no traffic is known yet; at this load a third of the demand finds no capacity,
# so that many links are bottlenecks.
_GENERATED = "gravity:seed=0,load=4,count={count}"
_LONGEST_S = 120.0  # seconds for a choice, after which the best set so far is taken


def candidate_paths(
    topology: Topology,
    spec: NetworkSpec,
    groups: Sequence[Sequence[int]],
    report: Callable[[float], None] | None = None,
    grown: Path | None = None,
) -> tuple[PathSet, frozenset[str]]:
    """Paths of all pairs of nodes, and the keys of all path sets that were kept on disk on the way.

    Args:
        topology: the network.
        spec: what it was registered with.
        groups: numbers of the links of each group of cables; empty for none.
        grown: file of the paths if some were added later; None for none.
        report: called now and then with the share of the first paths that are found; what it raises ends the work.

    Raises:
        InputError: paths that the settings forbid, or a damaged file of paths.
    """
    if grown is not None:
        return load_paths(grown, topology), frozenset()
    paths = compute_paths(
        topology,
        all_pairs(topology),
        num_paths=spec.first_paths,
        method=spec.path_method,
        weight=spec.path_weight,
        groups=groups if groups and spec.path_method is PathMethod.SURVIVABLE else None,
        report=report,
    )
    if spec.num_paths != "auto":
        return paths, frozenset([paths.key])
    count = representative_matrices(paths)
    if not count:
        return paths, frozenset([paths.key])
    traffic = load_traffic(_GENERATED.format(count=count), topology)
    chosen = choose_paths(
        topology, traffic.read(slice(None)), paths=paths, objective=Objective(spec.objective),
        max_paths=spec.max_paths, deadline=_LONGEST_S, report=None if report is None else lambda *_: report(1.0),
    ).paths  # fmt: skip
    shortest = search_key(topology, paths.pairs, 1, PathMethod.DISJOINT, PathWeight.HOPS)  # of the generator
    return chosen, frozenset([chosen.key, paths.key, shortest])
