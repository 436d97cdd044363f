"""Run schemes, built-in or of other packages, on the set of ``teal bench``."""

from __future__ import annotations

import csv
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import PathSet
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.storage import atomic_file
from teal.schemes import make_scheme
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.solvers.candidates import choose_paths
from teal_study.evaluation.bench.problems import BenchSet, Case
from teal_study.evaluation.bench.ranking import HEADER, Paths

# Indices of the matrices from which candidate paths are chosen; no case uses them.
_PATH_SELECTION_ROWS = (0, 3, 6, 9)
# Smallest split ratio that is written.
_MIN_SHARE = 1e-9


def run_scheme(
    bench: BenchSet,
    scheme: str,
    model: Path | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Paths], dict[str, float]]:
    """Run a scheme on every case.

    Candidate paths are chosen once for a network and objective, from its first matrices; this, and
    loading a model, are not timed.  In the track *next* the scheme allocates for an unknown matrix
    from the past ones.  A hedge, a method for this purpose alone (:mod:`teal_next`), may have
    results in this track alone; other schemes allocate for the last known matrix.  In
    *unsplittable* each demand uses the path with its largest share.

    Args:
        bench: benchmark set: networks, matrices and cases.
        scheme: specification, as in :func:`teal.make_scheme`.
        model: folder of a trained model, for schemes that need one.
        report: called with the name of each case.

    Returns:
        paths and shares of each case, and its seconds, by name of the case.

    Raises:
        InputError: an unknown scheme or option.
    """
    # A wrong specification raises its error here, before any case. A specification that only names
    # a hedge has results in the track next alone.
    make_hedge(scheme, model)
    is_hedge_only = not _is_scheme(scheme, model)
    results = {}
    seconds = {}
    paths_by_column_generation = functools.cache(functools.partial(_chosen_paths, bench))
    for case in bench.cases:
        report(case.name)
        if is_hedge_only and case.track != "next":
            continue
        # Problem of the case, and the timed allocation: from past matrices, or of the matrix.
        paths = paths_by_column_generation(case.network, case.objective)
        problem = _case_problem(bench, case, paths)
        if case.track == "next":
            past = Past(problem, bench.traffic[case.network].part(0, case.matrix))
            hedge = make_hedge(scheme, model)
            begin = time.perf_counter()
            splits = hedge.allocate(past)
        else:
            # A new instance, without state of earlier cases.
            new_scheme = make_scheme(scheme, model)
            begin = time.perf_counter()
            allocation = new_scheme.solve(problem)
            splits = allocation.splits[0]
        if splits.shape != problem.paths.leaf.shape:
            # The scheme has its own columns, which are no explicit paths.
            continue
        seconds[case.name] = time.perf_counter() - begin
        results[case.name] = dict(
            _paths_by_demand(problem, splits, single=case.track == "unsplittable")
        )
    return results, seconds


def _is_scheme(scheme: str, model: Path | None) -> bool:
    """Whether a specification names a scheme for known matrices, not only a hedge.

    Args:
        scheme: specification of a scheme or hedge.
        model: folder of a trained model; None for none.
    """
    try:
        make_scheme(scheme, model)
    except InputError:
        return False
    return True


def _chosen_paths(bench: BenchSet, network: str, objective: str) -> PathSet:
    """Return candidate paths for a network and objective, chosen from its first matrices.

    Args:
        bench: benchmark set: networks, matrices and cases.
        network: name of the network in the set.
        objective: name of the objective.
    """
    traffic = bench.traffic[network]
    matrix_indices = [row for row in _PATH_SELECTION_ROWS if row < traffic.num_matrices]
    return choose_paths(
        bench.networks[network], traffic.read(matrix_indices), objective=Objective(objective)
    ).paths


def _case_problem(bench: BenchSet, case: Case, paths: PathSet) -> Problem:
    """Return the problem of a case; for *next* without demand, which the scheme must not see.

    Args:
        bench: benchmark set: networks, matrices and cases.
        case: the case.
        paths: candidate paths.
    """
    demand = bench.traffic[case.network].read([case.matrix])
    if case.track == "next":
        demand = np.zeros_like(demand)
    topology = bench.networks[case.network]
    capacity = bench.network_of(case).capacity
    return Problem.create(topology, paths, Objective(case.objective), demand, capacity=capacity)


def _paths_by_demand(
    problem: Problem, splits: Tensor, *, single: bool
) -> Iterator[tuple[tuple[int, int], list[tuple[list[int], float]]]]:
    """Yield the source and target of each demand, with links and share of each path that it uses.

    Args:
        problem: problem of the case.
        splits: (D, K) split ratios.
        single: whether each demand uses only the path with its largest share.
    """
    shares = splits.detach().to(torch.float64).cpu().numpy().reshape(problem.paths.leaf.shape)
    # Scale rounded shares to a sum of 1 if all demand must be carried.
    if problem.demand_set.carries_all:
        shares = shares / np.maximum(shares.sum(1, keepdims=True), 1e-300)
    for d, (source, target) in enumerate(problem.paths.pairs.tolist()):
        if single:
            used_paths = [(int(np.argmax(shares[d])), 1.0)]
        else:
            used_paths = [
                (int(k), float(shares[d, k])) for k in np.flatnonzero(shares[d] > _MIN_SHARE)
            ]
        yield (source, target), [(problem.paths.links_of(d, k), share) for k, share in used_paths]


def write_results(
    path: Path, bench: BenchSet, results: dict[str, Paths], seconds: dict[str, float]
) -> None:
    """Write the result file of a scheme, and the seconds of each case to ``*.seconds.csv`` beside
    it.

    Args:
        path: the result file.
        bench: benchmark set: networks, matrices and cases.
        results: paths and shares of each case.
        seconds: seconds of each case.
    """
    # A row for each path: the source, then the end of each of its links.
    cases = {case.name: case for case in bench.cases}
    with (
        atomic_file(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.writer(stream)
        writer.writerow(HEADER)
        for name, case_paths in results.items():
            topology = bench.networks[cases[name].network]
            names = topology.node_names
            for (source, target), paths in case_paths.items():
                for links, share in paths:
                    nodes = "|".join(
                        [names[source], *(names[topology.link_target[link]] for link in links)]
                    )
                    writer.writerow((name, names[source], names[target], nodes, repr(share)))
    with atomic_file(path.with_suffix(".seconds.csv")) as temporary:
        lines = [f"{name},{value:.6g}" for name, value in seconds.items()]
        temporary.write_text("\n".join(["case,seconds", *lines]) + "\n", encoding="utf-8")
