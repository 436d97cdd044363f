"""Candidate paths from the settings of a command: a fixed number for each pair of nodes, read from
a file, or extended by column generation for the traffic.

Entry points: :func:`candidate_paths`, :func:`paths_by_column_generation`, :func:`of_classes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from teal.app.command import throttled
from teal.app.settings import CandidateConfig, PathConfig, ProgramConfig, assignments
from teal.errors import InputError
from teal.formats.groups import failing_links
from teal.network import PathMethod, PathSet, Topology, TrafficMatrices, compute_paths
from teal.network.classes import class_paths
from teal.network.path_file import load_paths
from teal.network.traffic import spread
from teal.objectives import Objective, ObjectiveName
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.solvers.candidates import ChosenPaths, choose_paths, representative_matrices
from teal.solvers.columns import ColumnRound

# Seconds between two progress messages.
_REPORT_EVERY_S = 5.0
# Lower limit of the remaining seconds, so that their logarithm exists.
_MIN_CHOICE_S = 1e-3
# Maximum seconds of column generation; then the best paths so far are returned.
_MAX_CHOICE_S = 300.0


def path_groups(config: PathConfig, topology: Topology) -> list[list[int]] | None:
    """Return the link indices of each shared-risk group of ``--path-groups``; None without the
    option, where each cable is a group.

    Raises:
        InputError: an invalid file, or groups with Yen's paths, which ignore them.
    """
    if config.path_groups is None:
        return None
    if config.path_method is PathMethod.YEN:
        raise InputError.invalid(
            "--path-groups",
            "",
            f"--path-method {config.path_method.value} ignores groups",
            "use --path-method edge-disjoint, survivable or maximally-disjoint",
        )
    return failing_links(str(config.path_groups), topology)


def first_paths(config: PathConfig, topology: Topology, pairs: IntArray | None) -> PathSet:
    """Compute a fixed number of paths for each pair, the final set or the start of column
    generation.

    Args:
        config: the settings.
        topology: the network.
        pairs: (D, 2) source and target of each demand; None for all pairs.
    """
    return compute_paths(
        topology,
        pairs,
        num_paths=config.first_paths,
        method=config.path_method,
        weight=config.path_weight,
        groups=path_groups(config, topology),
        progress=True,
    )


def candidate_paths(config: CandidateConfig, topology: Topology, pairs: IntArray) -> PathSet:
    """Return the paths of each pair of nodes, computed or read from the file of the settings.

    If the settings ask for column generation, these are the paths from which it starts.

    Args:
        config: the settings.
        topology: the network.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: a file of paths for other pairs or another network.
    """
    if config.paths is None:
        return first_paths(config, topology, pairs)
    paths = load_paths(config.paths, topology)
    if not np.array_equal(paths.pairs, pairs):
        raise InputError.invalid(
            str(config.paths),
            "pairs",
            f"the {len(paths.pairs):,} pairs of nodes of the file differ from the "
            f"{len(pairs):,} pairs of the traffic",
            "compute the paths for this traffic",
        )
    return paths


def of_classes(
    config: ProgramConfig, topology: Topology, traffic: TrafficMatrices, paths: PathSet
) -> PathSet:
    """Expand the paths of pairs of nodes to the demands of all classes, without paths above the
    latency limit of the class.

    Args:
        config: the settings.
        topology: the network.
        traffic: its D demands.
        paths: paths of its pairs of nodes, each pair once.

    Returns:
        Candidate paths (D, K); ``paths`` itself for traffic without classes.

    Raises:
        InputError: latency limits of unknown classes, or for traffic without classes.
    """
    limits = assignments(config.latency_limits, "--latency-limits")
    if traffic.classes is None:
        if limits:
            raise InputError.invalid(
                "--latency-limits",
                "",
                "latency limits are those of classes, but the traffic has no classes",
                "add a column class to the traffic, or drop the option",
            )
        return paths
    return class_paths(paths, topology, traffic.pairs, traffic.classes, limits)


def paths_by_column_generation(
    config: PathConfig,
    topology: Topology,
    traffic: TrafficMatrices,
    paths: PathSet,
    objective: Objective,
    weight: FloatArray | None,
    notify: Callable[[str], None],
    deadline: Deadline | None = None,
) -> PathSet:
    """Add paths by column generation for some training matrices (``--num-paths auto``); results
    are cached on disk.

    For a sequence of programs the paths are generated for the objective ``rules.paths_for``.  The
    demands of several classes between the same nodes are added up.

    Args:
        config: the settings; with a fixed number of paths, ``paths`` is returned.
        topology: the network.
        traffic: its matrices.
        paths: paths of its pairs of nodes, each pair once, to start from.
        objective: the objective.
        weight: (D,) value of one Gbit/s of each demand of ``traffic``; None for 1 each.
        notify: prints a message about the result, and about progress.
        deadline: deadline of all computations for the network; column generation uses at most half
            of the remaining time.  None for none.
    """
    choice = config.choice
    if choice is None:
        return paths
    # Sample training matrices, (B, D) Gbit/s; none on very large networks.
    if not representative_matrices(paths):
        notify(
            f"candidate paths: no column generation, since it would be slow for "
            f"{paths.num_demands:,} demands"
        )
        return paths
    demand = _sampled_demands(traffic, paths)
    if not len(demand):
        return paths
    # Demands are summed over classes, so that class weights do not apply.
    if traffic.classes is not None and objective.name == ObjectiveName.WEIGHTED_FLOW:
        objective = Objective()
        weight = None
    # Column generation, with a progress message every few seconds.
    progress = RoundsProgress(notify, _REPORT_EVERY_S)
    generation_result = choose_paths(
        topology,
        demand,
        paths=paths,
        objective=objective,
        weight=weight if traffic.classes is None else None,
        gap=choice.gap,
        max_paths=choice.max_paths,
        deadline=_generation_seconds(deadline or Deadline()),
        report=lambda row, column_round: progress(
            column_round, f"candidate paths, matrix {row + 1} of {len(demand)}, "
        ),
    )
    _notify_of_choice(generation_result, paths, len(demand), choice.max_paths, notify)
    return generation_result.paths


def _notify_of_choice(
    generation_result: ChosenPaths,
    paths: PathSet,
    num_matrices: int,
    max_paths: int,
    notify: Callable[[str], None],
) -> None:
    """Report the number of added paths, and the certified gap to the optimum over all paths.

    Args:
        generation_result: result of column generation.
        paths: the paths that it started from.
        num_matrices: number of its matrices.
        max_paths: maximum number of paths of a demand.
        notify: prints a message.
    """
    max_gap = float(generation_result.gaps.max())
    text = (
        f"within {100 * max_gap:.2g}% of the optimum over all paths"
        if max_gap < 1
        else "no certified gap to the optimum over all paths"
    )

    matrices = "1 training matrix" if num_matrices == 1 else f"{num_matrices} training matrices"
    num_added = int(generation_result.paths.mask.sum()) - int(paths.mask.sum())
    notify(
        f"candidate paths: {num_added:,} added to {int(paths.mask.sum()):,} for {matrices}: {text}"
    )
    if generation_result.limited:
        notify(
            f"candidate paths: {generation_result.limited:,} demands use more paths than "
            f"the limit of {max_paths} keeps (raise it by --num-paths auto:most=N)"
        )


def _generation_seconds(deadline: Deadline) -> float:
    """Return the time limit of column generation in seconds: 300, or at most half of the remaining
    time.

    A limit below 300 is rounded down to a power of two: it is part of the cache key of paths that
    it cuts short, so that another run with a similar deadline finds them.

    Args:
        deadline: deadline of all computations for the network.
    """
    if deadline.remaining_s >= 2 * _MAX_CHOICE_S:
        return _MAX_CHOICE_S
    # Half of the remaining time, rounded down to a power of two.
    return 2.0 ** (math.floor(math.log2(max(deadline.remaining_s, _MIN_CHOICE_S))) - 1)


def _sampled_demands(traffic: TrafficMatrices, paths: PathSet) -> FloatArray:
    """Return evenly spaced training matrices with demand, summed over classes.

    Args:
        traffic: T matrices; several demands have the same pair of nodes if there are classes.
        paths: paths of P distinct pairs of nodes.

    Returns:
        (B, P) Gbit/s.
    """
    demand = traffic.read(spread(traffic.split().train, representative_matrices(paths)))
    demand = demand[demand.sum(1) > 0]
    if traffic.classes is None:
        return demand
    # Add up the demands of all classes between the same nodes.
    pair_rows = _pair_rows(traffic.pairs, paths.pairs)
    pair_demand = np.zeros((len(demand), paths.num_demands))
    np.add.at(pair_demand.T, pair_rows, demand.T)
    return pair_demand


def _pair_rows(pairs: IntArray, unique_pairs: IntArray) -> Int64Array:
    """Return the row of each pair in a table of distinct pairs.

    Args:
        pairs: (D, 2) source and target nodes.
        unique_pairs: (P, 2) distinct pairs, sorted by source, then target.

    Returns:
        (D,) rows of ``unique_pairs``.
    """
    num_nodes = int(unique_pairs.max(initial=0)) + 1
    # Encode pair (s, t) as the integer s * N + t, which has the same order.
    pair_codes: list[AnyArray] = [
        node_pairs[:, 0].astype(np.int64) * num_nodes + node_pairs[:, 1]
        for node_pairs in (unique_pairs, pairs)
    ]
    return np.searchsorted(pair_codes[0], pair_codes[1])


def proven(gap_all_paths: float) -> float:
    """Return a certified relative gap unchanged if it is below 1, else NaN: the trivial bound 0 on
    a minimum certifies a gap of 1 without any proof of value.
    """
    return gap_all_paths if gap_all_paths < 1 else math.nan


def describe_gap_over_all_paths(gap_all_paths: float) -> str:
    """Return a description of the relative gap to the optimum over all paths in one line; NaN means
    that the gap is unknown.
    """
    if math.isnan(gap_all_paths):
        return "gap to the optimum over all paths unknown: no useful dual bound yet"
    return f"gap to the optimum over all paths {100 * gap_all_paths:.3f}%"


class RoundsProgress:
    """Print a message about column generation from time to time.

    Args:
        notify: prints a line.
        every_s: seconds between two messages.
    """

    def __init__(self, notify: Callable[[str], None], every_s: float) -> None:
        self._progress = throttled(notify, every_s)
        # Number of reported rounds.
        self._rounds = 0

    def __call__(self, column_round: ColumnRound, matrix: str = "") -> None:
        """Count a round of column generation, and print it if the last message is old enough.

        Args:
            column_round: added paths and gap of the round.
            matrix: text before the message that names the matrix.
        """
        self._rounds += 1
        line = describe_gap_over_all_paths(proven(column_round.gap_all_paths))
        self._progress(f"{matrix}round {self._rounds}: {line}; {column_round.added:,} paths added")
