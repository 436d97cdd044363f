"""From the settings of a command to candidate paths: of a fixed number, read from a file, or chosen
for the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from teal.app.command import seldom
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
_LEAST_S = 1e-3
# Maximum seconds for the choice; then the best set so far is returned.
_LONGEST_S = 300.0


def path_groups(config: PathConfig, topology: Topology) -> list[list[int]] | None:
    """Numbers of the links of each group that paths survive or do not share; None for cables alone.

    Raises:
        InputError: see :func:`teal.formats.groups.load_groups`; a file with Yen's paths.
    """
    if config.path_groups is None:
        return None
    if config.path_method is PathMethod.YEN:
        raise InputError(
            "--path-groups",
            "",
            "--path-method edge-disjoint, survivable or maximally-disjoint",
            config.path_method.value,
        )
    return failing_links(str(config.path_groups), topology)


def first_paths(config: PathConfig, topology: Topology, pairs: IntArray | None) -> PathSet:
    """The paths of a fixed number, or those from which a choice begins.

    Args:
        config: the settings.
        topology: the network.
        pairs: (D, 2) of the demands; None for all pairs.
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
    """The paths of ``config``, computed or read, for ``pairs``; of a choice those from which it
    begins.

    Raises:
        InputError: a file of paths for other pairs or another network.
    """
    if config.paths is None:
        return first_paths(config, topology, pairs)
    paths = load_paths(config.paths, topology)
    if not np.array_equal(paths.pairs, pairs):
        expected = f"paths of the traffic's {len(pairs):,} pairs"
        raise InputError(
            str(config.paths), "pairs", expected, f"those of {len(paths.pairs):,} others"
        )
    return paths


def of_classes(
    config: ProgramConfig, topology: Topology, traffic: TrafficMatrices, paths: PathSet
) -> PathSet:
    """Candidate paths of all demands, within the latency limits of their classes.

    Args:
        config: the settings.
        topology: the network.
        traffic: its demands.
        paths: paths of its pairs, each pair once.

    Raises:
        InputError: limits of unknown classes, or without classes.
    """
    limits = assignments(config.latency_limits, "--latency-limits")
    if traffic.classes is None:
        if limits:
            raise InputError("--latency-limits", "", "traffic with classes", "none")
        return paths
    return class_paths(paths, topology, traffic.pairs, traffic.classes, limits)


def chosen_paths(
    config: PathConfig,
    topology: Topology,
    traffic: TrafficMatrices,
    paths: PathSet,
    objective: Objective,
    weight: FloatArray | None,
    notify: Callable[[str], None],
    end: Deadline | None = None,
) -> PathSet:
    """``paths``, or the paths that are chosen from there for some training matrices, computed or
    from the cache.

    Paths of an objective that is a sequence of programs are chosen under the one that its rules
    name; demands of several classes between the same nodes count together.

    Args:
        config: the settings.
        topology: the network.
        traffic: its matrices.
        paths: paths of its pairs, each pair once.
        objective: the program.
        weight: (D,) of the demands of ``traffic``; None for 1 each.
        notify: called with what was found, and with progress.
        end: deadline of all that is computed for the network, of which the choice takes half at
            most; None for none.
    """
    choice = config.choice
    if choice is None:
        return paths
    # The matrices to choose paths for.
    if not representative_matrices(paths):
        notify(
            f"candidate paths: {paths.num_demands:,} demands are too many to choose further paths "
            "quickly"
        )
        return paths
    demand = _representative(traffic, paths)
    if not len(demand):
        return paths
    # Demands of several classes between the same nodes count together, without weights.
    if traffic.classes is not None and objective.name == ObjectiveName.WEIGHTED_FLOW:
        objective = Objective()
        weight = None
    progress = RoundsProgress(notify, _REPORT_EVERY_S)
    chosen = choose_paths(
        topology,
        demand,
        paths=paths,
        objective=objective,
        weight=weight if traffic.classes is None else None,
        gap=choice.gap,
        max_paths=choice.most,
        deadline=_seconds(end or Deadline()),
        report=lambda row, column_round: progress(
            column_round, f"candidate paths, matrix {row + 1} of {len(demand)}, "
        ),
    )
    _notify_of_choice(chosen, paths, len(demand), choice.most, notify)
    return chosen.paths


def _notify_of_choice(
    chosen: ChosenPaths,
    paths: PathSet,
    num_matrices: int,
    max_paths: int,
    notify: Callable[[str], None],
) -> None:
    """Report how many paths were added to ``paths`` for some matrices, and their certified gap.

    Args:
        chosen: the chosen paths.
        paths: the paths before.
        num_matrices: number of matrices that they were chosen for.
        max_paths: maximum number of paths of a demand.
        notify: called with the text.
    """
    max_gap = float(chosen.gaps.max())
    text = (
        f"within {100 * max_gap:.2g}% of the optimum over all paths"
        if max_gap < 1
        else "nothing certified"
    )

    matrices = "1 training matrix" if num_matrices == 1 else f"{num_matrices} training matrices"
    num_added = int(chosen.paths.mask.sum()) - int(paths.mask.sum())
    notify(
        f"candidate paths: {num_added:,} added to {int(paths.mask.sum()):,} for {matrices}: {text}"
    )
    if chosen.limited:
        notify(
            f"the limit of {max_paths} paths for each demand removes used paths of "
            f"{chosen.limited:,} demands (--num-paths auto:most=N)"
        )


def _seconds(end: Deadline) -> float:
    """For the choice: a power of two, so that another run finds what was kept, and at most half of
    what is left.
    """
    if end.remaining_s >= 2 * _LONGEST_S:
        return _LONGEST_S
    return 2.0 ** (math.floor(math.log2(max(end.remaining_s, _LEAST_S))) - 1)


def _representative(traffic: TrafficMatrices, paths: PathSet) -> FloatArray:
    """(B, D) training matrices, evenly spread, those without demand left out; D pairs of nodes,
    each once.
    """
    demand = traffic.read(spread(traffic.split().train, representative_matrices(paths)))
    demand = demand[demand.sum(1) > 0]
    if traffic.classes is None:
        return demand
    position = _places(traffic.pairs, paths.pairs)
    together = np.zeros((len(demand), paths.num_demands))
    np.add.at(together.T, position, demand.T)
    return together


def _places(pairs: IntArray, unique: IntArray) -> Int64Array:
    """(D,) row of each pair in ``unique``, which is sorted."""
    nodes = int(unique.max(initial=0)) + 1
    numbers: list[AnyArray] = [
        part[:, 0].astype(np.int64) * nodes + part[:, 1] for part in (unique, pairs)
    ]
    return np.searchsorted(numbers[0], numbers[1])


def proven(gap_all_paths: float) -> float:
    """A gap to the optimum over all paths; NaN for one of 1 and more, which the bound 0 of a
    minimum proves too.
    """
    return gap_all_paths if gap_all_paths < 1 else math.nan


def describe_gap_over_all_paths(gap_all_paths: float) -> str:
    """The gap to the optimum over all paths in one line of text; NaN means that it is unknown."""
    if math.isnan(gap_all_paths):
        return "gap to the optimum over all paths unknown: these prices prove nothing about it"
    return f"gap to the optimum over all paths {100 * gap_all_paths:.3f}%"


class RoundsProgress:
    """Prints a message about column generation from time to time.

    Args:
        notify: prints a line.
        every_s: seconds between two messages.
    """

    def __init__(self, notify: Callable[[str], None], every_s: float) -> None:
        self._progress = seldom(notify, every_s)
        self._rounds = 0

    def __call__(self, column_round: ColumnRound, matrix: str = "") -> None:
        """Show a step, as ``report`` of :func:`teal.solvers.columns.improving`; ``matrix`` says
        which one.
        """
        self._rounds += 1
        line = describe_gap_over_all_paths(proven(column_round.gap_all_paths))
        self._progress(f"{matrix}round {self._rounds}: {line}; {column_round.added:,} paths added")
