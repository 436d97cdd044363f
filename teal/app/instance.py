"""Build the input of a command from its settings: network, traffic, weights and candidate paths.

Also calibrates the load (``--calibrate``): the factor on all demands at which the optimal total
flow serves a given fraction of the median matrix, by bisection in the logarithm of the factor.
Entry points: :func:`load_instance`, :func:`instance_of`, :func:`calibration_factor`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from teal.app.path_sets import candidate_paths, of_classes, paths_by_column_generation
from teal.app.settings import (
    InstanceConfig,
    ObjectiveConfig,
    ProgramConfig,
    ProgramFileConfig,
    assignments,
)
from teal.deprecated import with_old_names
from teal.errors import InputError, SolverError
from teal.formats import load_traffic, topology_from
from teal.formats.bandwidth_functions import read_bandwidth_functions
from teal.formats.groups import failing_links
from teal.formats.side_tables import (
    SOURCE,
    TARGET,
    Column,
    Kind,
    read_side_table,
    require_once,
)
from teal.network import PathSet, Split, Topology, TrafficMatrices
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.network.classes import latency_limits
from teal.network.reachability import with_surviving_paths
from teal.network.traffic import spread
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.protection import Protection
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.device import is_faster_on_gpu, pick_device
from teal.runtime.interruptible import Deadline
from teal.runtime.progress import progress_bar
from teal.runtime.storage import atomic_file, cache_dir, content_key
from teal.solvers import pipeline
from teal.solvers.result import SolveState
from teal.spec import parse_spec

# Relative certified gap at which PDHG stops for each optimum.
_TARGET_GAP = 1e-3
# Absolute tolerance of the served fraction, half the certified gap of the optima: a smaller one
# would be below their error.
_TOLERANCE = _TARGET_GAP / 2
# Maximum relative gap of an optimum when the iterations run out.
_MAX_GAP = 1e-2
# Maximum iterations of PDHG for each optimum; usual ones take below 100.
_MAX_ITERATIONS = 2000
# Maximum number of matrices in the median; odd, so that the median is one of them.
_MAX_MATRICES = 21
# Minimum number of matrices in the median, however large the network.
_MIN_MATRICES = 5
# Matrices x demands that are solved together, which bounds memory and time.
_TARGET_ENTRIES = 200_000
# Width of the bracket of ln(factor) at which bisection ends; the relative error of the factor is
# then at most one in a million.
_MIN_BRACKET = 1e-6
# Seconds after which the progress bar of a calibration is shown.
_SILENT_S = 1.0


def calibration_factor(
    topology: Topology,
    paths: PathSet,
    traffic: TrafficMatrices,
    rows: Int64Array,
    target_fraction: float,
    end: Deadline | None = None,
) -> float:
    """Return the factor on all demands at which the optimal total flow serves ``target_fraction``
    of the demand, in the median over training matrices.

    The median is over up to 21 matrices, evenly spaced in ``rows``, fewer on large networks (at
    least 5).  PDHG solves each optimum to a certified gap of 0.1%.  The served fraction falls as
    the factor grows, so the factor is bracketed and then bisected in its logarithm.

    Args:
        topology: the network.
        paths: candidate paths of each demand, in the order of the traffic's demands.
        traffic: matrices before scaling, Gbit/s.
        rows: indices of the training matrices in ``traffic``.
        target_fraction: total flow over total demand, in (0, 1).
        end: deadline of the search; None for none.

    Raises:
        InputError: ``target_fraction`` is not in (0, 1), or above the fraction of the demand that
            has a path.
        SolverError: the gap of an optimum is above 1% after 2,000 iterations, or the deadline has
            passed.
    """
    option = "--calibrate"
    if not 0 < target_fraction < 1:
        raise InputError(option, "", "a share between 0 and 1", target_fraction)
    # Sample training matrices: (B, D) Gbit/s, without empty ones.
    count = int(np.clip(_TARGET_ENTRIES // traffic.num_demands, _MIN_MATRICES, _MAX_MATRICES))
    demand = traffic.read(spread(rows, count))
    demand = demand[demand.sum(1) > 0]
    if not len(demand):
        raise InputError.invalid(
            option, "traffic", "no training matrix has a demand above 0; use other traffic"
        )
    # The fraction of the demand with a path bounds the served fraction at any load.
    unscaled = Problem.create(topology, paths, Objective(), demand)
    routable_fraction = float(
        (unscaled.demand * unscaled.routable).sum(1).div(unscaled.demand.sum(1)).median()
    )
    if routable_fraction <= target_fraction:
        expected = f"less than {routable_fraction:.3f}, the fraction of the demand with a path"
        raise InputError(option, "", expected, target_fraction)
    with progress_bar(
        desc=f"calibrating on {len(demand)} matrices", unit="load", delay=_SILENT_S, leave=False
    ) as bar:
        search = _LoadSearch(unscaled, bar, end or Deadline())
        return _bisect_factor(search, unscaled, target_fraction)


def _bisect_factor(search: _LoadSearch, unscaled: Problem, target_fraction: float) -> float:
    """Return the factor on all demands at which the optimum serves ``target_fraction`` of them.

    ``low`` and ``high`` bracket the logarithm of the factor: the served fraction is at least the
    target at ``low`` and at most the target at ``high``.

    Args:
        search: computes the served fraction at a factor.
        unscaled: total-flow problem of B matrices at factor 1.
        target_fraction: total flow over total demand, in (0, 1).
    """
    # Start at the factor at which even splits just fill the busiest link, in the median.
    low = high = -math.log(float(unscaled.utilisation(unscaled.even_splits).amax(1).median()))
    # Bracket: double the load until too little is served, halve it until enough is served.
    while search.median_served_fraction(high) > target_fraction:
        low = high
        high = high + math.log(2)
    while search.median_served_fraction(low) < target_fraction:
        low, high = low - math.log(2), low
    # Bisection.
    while high - low > _MIN_BRACKET:
        middle = (low + high) / 2
        served_fraction = search.median_served_fraction(middle)
        if abs(served_fraction - target_fraction) < _TOLERANCE:
            return math.exp(middle)
        low, high = (middle, high) if served_fraction > target_fraction else (low, middle)
    return math.exp((low + high) / 2)


class _LoadSearch:
    """Optimal served fraction as a function of the load factor; PDHG starts each solve from the
    final state of the previous one.

    Args:
        unscaled: total-flow problem of the sampled matrices at factor 1.
        bar: progress bar, advanced by 1 for each solve.
        end: deadline of all solves together.
    """

    def __init__(self, unscaled: Problem, bar: Any, deadline: Deadline) -> None:
        self._unscaled = unscaled
        self._bar = bar
        self._deadline = deadline
        self._state: SolveState | None = None

    def median_served_fraction(self, log_factor: float) -> float:
        """Return the median over the matrices of optimal total flow / total demand, with all
        demands times exp(log_factor).

        Raises:
            SolverError: the deadline has passed, or the certified gap of an optimum is above 1%.
        """
        problem = self._unscaled.with_demand(self._unscaled.demand * math.exp(log_factor))
        result = pipeline.solve(
            problem,
            gap=_TARGET_GAP,
            deadline=self._deadline.remaining,
            max_iterations=_MAX_ITERATIONS,
            warm_start=self._state,
        )
        # A result at the deadline, or one with a large gap, is of no use.
        if self._deadline.is_over:
            raise SolverError(
                "--calibrate: the load factor was not found before the deadline; use a longer "
                "deadline"
            )
        largest_gap = float(result.gap.max())
        if largest_gap > _MAX_GAP:
            raise SolverError(
                f"--calibrate: after {result.iterations} iterations the certified gap of an "
                f"optimum is {100 * largest_gap:.1f}%, above the limit of {100 * _MAX_GAP:.0f}%; "
                "use another share or fewer demands"
            )
        self._state = result.state
        self._bar.update()
        # The optimum lies between the primal value and the dual bound, both (B,) Gbit/s; their mean
        # halves the largest error.
        return float(((result.value + result.bound) / 2 / problem.demand.sum(1)).median())


# Part of the cache key: increment it when calibration changes.
_CALIBRATION_FORMAT = 2
# Value of --protect: each cable alone is a failure group.
_CABLES = "cables"
# Prefix of --weights for random weights.
_RANDOM = "random"
# Weights of objectives that need them, without --weights.
_DEFAULT_WEIGHTS = f"{_RANDOM}:seed=0"
_WEIGHT_COLUMN = Column("weight", Kind.NUMBER, required=True)
# `random:seed=N` draws each weight from these values with equal probability.
_PRIORITIES = (1.0, 2.0, 4.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """Input of a command: network, traffic, candidate paths, and the program to solve.

    Attributes:
        topology: the network as loaded.
        traffic: T matrices of D demands, scaled by the calibration, if there is one.
        paths: candidate paths, (D, K), in the order of the traffic's demands.
        objective: the objective of the program.
        weight: (D,) value of one Gbit/s of each demand; None for equal weights.
        split: indices of the training, validation and test matrices.
        device: device of the tensors.
        protection: failures that the guaranteed flows must survive; None for none.
        paths_s: seconds to compute the paths or to read them from the cache.
        functions: bandwidth functions of the demands; None for none.
        max_latency: (D,) upper limit of the path latency of each demand, ms, infinite for no limit;
            None for no limits.
        end: deadline of everything that is computed for the instance.
    """

    topology: Topology
    traffic: TrafficMatrices
    paths: PathSet
    objective: Objective
    weight: FloatArray | None
    split: Split
    device: torch.device
    paths_s: float = 0.0
    protection: Protection | None = None
    functions: BandwidthFunctions | None = None
    max_latency: FloatArray | None = None
    end: Deadline = dataclasses.field(default_factory=Deadline)

    @property
    def value_arrays(self) -> tuple[FloatArray, ...]:
        """Arrays that give the demands different values, for cache keys: the weights (D,), and the
        slopes and piece ends (D, C) of the bandwidth functions, each if there are any.
        """
        functions = () if self.functions is None else (self.functions.slope, self.functions.end)
        return (*(() if self.weight is None else (self.weight,)), *functions)

    def problem(self, demand: FloatArray, *, capacity: FloatArray | None = None) -> Problem:
        """Build the program of B matrices on the instance's network, in float64.

        Args:
            demand: (B, D) Gbit/s.
            capacity: (E,) Gbit/s; None for the topology's capacities.
        """
        problem = Problem.create(
            self.topology,
            self.paths,
            self.objective,
            demand,
            capacity=capacity,
            weight=self.weight,
            functions=self.functions,
            classes=self.traffic.classes,
            device=self.device,
        )
        return problem if self.protection is None else problem.under(self.protection)

    def surviving(
        self, failures: Iterable[Iterable[int]], notify: Callable[[str], None] = lambda _: None
    ) -> Instance:
        """Add a surviving path for each demand whose candidate paths all fail together.

        A demand gets a path only if the network still connects its nodes during that failure.

        Args:
            failures: indices of the failed links of each failure; links of capacity 0 are down in
                every failure.
            notify: prints a message with the number of added paths.

        Returns:
            The instance with these paths; ``self`` if none is missing.

        Raises:
            InputError: a demand already has the maximum number of paths.
        """
        paths = with_surviving_paths(
            self.paths, self.topology, failures, max_latency=self.max_latency
        )
        if paths is self.paths:
            return self
        num_added = int(paths.mask.sum()) - int(self.paths.mask.sum())
        notify(
            f"{num_added:,} paths added, for demands that the network connects but their candidate "
            "paths do not"
        )
        # The protection depends on the paths, so it is built again.
        extended = dataclasses.replace(self, paths=paths, protection=None)
        protection = (
            None if self.protection is None else _protection(extended, self.protection.groups)
        )
        return dataclasses.replace(extended, protection=protection)


def load_instance(
    config: InstanceConfig,
    notify: Callable[[str], None] = lambda _: None,
    select: Callable[[TrafficMatrices], TrafficMatrices] = lambda traffic: traffic,
    on_topology: Callable[[Topology], None] = lambda _: None,
    deadline: float = math.inf,
) -> Instance:
    """Load network and traffic from the settings, and compute candidate paths and weights.

    Args:
        config: the settings.
        notify: prints a message.
        select: selects part of the traffic before paths are computed.
        on_topology: called with the network as soon as it is loaded.
        deadline: seconds for all computations, from the end of reading network and traffic.

    Raises:
        InputError: invalid user input.
        SolverError: the factor of --calibrate was not found in time.
    """
    # An unavailable device is an error before anything is read.
    _check_device(config)
    topology, traffic = load_network(config.topology, config.traffic, config, notify, on_topology)
    return instance_of(topology, select(traffic), config, notify, deadline)


def _check_device(config: ProgramConfig) -> None:
    """Raise InputError for an unavailable device, or one that cannot run the program."""
    pick_device(config.device)
    if config.cpu_alone and config.device not in ("auto", "cpu"):
        raise InputError("--device", "", f"auto or cpu, for {config.cpu_alone}", config.device)


def _device_of(config: ProgramConfig, paths: PathSet) -> torch.device:
    """Return the torch device of the settings; for ``auto`` the one with the shorter predicted
    solve time over these paths.
    """
    if config.device != "auto":
        return pick_device(config.device)
    return pick_device("auto" if suits_gpu(config, paths, torch.get_num_threads()) else "cpu")


def suits_gpu(config: ProgramConfig, paths: PathSet, threads: int) -> bool:
    """Return whether ``--device auto`` selects an available GPU.

    Args:
        config: the settings.
        paths: the candidate paths.
        threads: number of CPU threads of a solve, the alternative.
    """
    if config.cpu_alone:
        return False
    return config.prefers_gpu or is_faster_on_gpu(paths.scan_size, threads)


def instance_of(
    topology: Topology,
    traffic: TrafficMatrices,
    config: ProgramConfig,
    notify: Callable[[str], None] = lambda _: None,
    deadline: float = math.inf,
) -> Instance:
    """Build the instance of a network and its traffic: candidate paths, calibration, weights,
    latency limits and protection.

    Args:
        topology: the network.
        traffic: its matrices, Gbit/s.
        config: settings of the program and of the candidate paths.
        notify: prints a message.
        deadline: seconds from now for all computations.

    Raises:
        InputError: invalid settings.
        SolverError: the factor of --calibrate was not found in time.
    """
    _check_device(config)
    objective = Objective(config.objective)
    split = traffic.split()
    end = Deadline.after(deadline)
    # Candidate paths of each distinct pair of nodes; demands of several classes share them.
    begin = time.perf_counter()
    pairs = traffic.pairs if traffic.classes is None else np.unique(traffic.pairs, axis=0)
    pair_paths = candidate_paths(config, topology, pairs)
    paths_s = time.perf_counter() - begin
    # Scale the demands.  The factor is computed over these paths, so that it is independent of
    # paths that are chosen for the scaled demands below.
    if config.calibrate is not None:
        paths = of_classes(config, topology, traffic, pair_paths)
        factor = _cached_calibration(topology, paths, traffic, split, config.calibrate, end)
        notify(
            f"all demands are multiplied by {factor:.6g}: the optimum then serves "
            f"{100 * config.calibrate:g}% of the median training matrix"
        )
        traffic = traffic.scaled(factor)
    # Weights (D,) and bandwidth functions of the demands.
    weight = demand_weights(config, topology, traffic, notify)
    functions = None
    if config.functions is not None:
        functions = read_bandwidth_functions(
            config.functions, topology, traffic.pairs, traffic.classes
        )
    # Add paths by column generation, and expand the paths of the pairs to (D, K) of the demands.
    begin = time.perf_counter()
    if config.paths is None and config.chooses_paths and not end.is_over:
        pair_paths = paths_by_column_generation(
            config, topology, traffic, pair_paths, objective, weight, notify, end
        )
    paths = of_classes(config, topology, traffic, pair_paths)
    paths_s += time.perf_counter() - begin
    _notify_of_paths(paths, notify)
    # A path for each demand without candidates that the network without failures connects, then
    # protection against failures.
    instance = Instance(
        topology,
        traffic,
        paths,
        objective,
        weight,
        split,
        _device_of(config, paths),
        paths_s,
        functions=functions,
    )
    instance = dataclasses.replace(
        instance, end=end, max_latency=_latency_limits(config, traffic)
    ).surviving([()], notify)
    return with_protection(instance, config.protect, notify) if config.protect else instance


def _notify_of_paths(paths: PathSet, notify: Callable[[str], None]) -> None:
    """Report the number of paths, trie nodes, and demands without a path."""
    path_count = paths.mask.sum(1)
    num_without = int((path_count == 0).sum())
    notify(
        f"{int(path_count.sum()):,} paths, {paths.trie.num_nodes:,} trie nodes, {num_without} "
        "demands without a path"
    )


def _latency_limits(config: ProgramConfig, traffic: TrafficMatrices) -> FloatArray | None:
    """Return the (D,) upper limit of each demand's path latency, ms, by its class; None for no
    limits.
    """
    limits = assignments(config.latency_limits, "--latency-limits")
    if traffic.classes is None or not limits:
        return None
    return np.array(latency_limits(traffic.classes.names, limits))[traffic.classes.of_demand]


def _protection(instance: Instance, groups: Sequence[Sequence[int]]) -> Protection:
    """Build the protection of an instance's paths against the failure of any one group.

    Args:
        instance: instance without protection.
        groups: indices of the links of each group that fails as a whole.
    """
    # The protection depends on the paths only, so that one matrix of zeros suffices.
    problem = instance.problem(np.zeros((1, instance.paths.num_demands)))
    return Protection.of(problem.ops, instance.topology.num_links, groups)


def with_protection(instance: Instance, protect: str, notify: Callable[[str], None]) -> Instance:
    """Return the instance with guaranteed flows that survive the failure of any one group.

    Args:
        instance: instance without protection.
        protect: ``cables`` (each cable is a group), or the name of a file of groups.
        notify: prints a message with the number of unprotected demands.

    Raises:
        InputError: an invalid file, or groups that the program cannot be protected against.
    """
    # Guaranteed flows depend on the paths only: the program has one matrix of zeros.
    groups = failing_links("" if protect == _CABLES else protect, instance.topology)
    problem = instance.problem(np.zeros((1, instance.paths.num_demands)))
    protection = _protection(instance, groups)
    num_unprotected = int(protection.unprotected(problem.under(protection).program).sum())
    group_word = "cable" if protect == _CABLES else "group"
    notify(
        f"guarantees survive the failure of any one of {len(groups)} {group_word}s; "
        f"{num_unprotected:,} demands cannot be protected"
    )
    return dataclasses.replace(instance, protection=protection)


def load_network(
    topology: Any,
    traffic: Any,
    config: ProgramFileConfig,
    notify: Callable[[str], None] = lambda _: None,
    on_topology: Callable[[Topology], None] = lambda _: None,
) -> tuple[Topology, TrafficMatrices]:
    """Return network and traffic, read from files and names where they are not objects already.

    Args:
        topology: a network, a file, a name, or another form that ``topology_from`` accepts.
        traffic: matrices, a file, a name, or another form that ``load_traffic`` accepts.
        config: settings of units, attributes and classes.
        notify: prints a message.
        on_topology: called with the network as soon as it is loaded.

    Raises:
        InputError: invalid user input.
    """
    topology = topology_from(topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    on_topology(topology)
    for note in topology.notes:
        notify(note)
    # --classes is either NAME=FRACTION,..., which divides every demand, or the order of the classes
    # in the file.
    class_fractions = assignments(config.classes, "--classes") if "=" in config.classes else {}
    order_text = config.classes if not class_fractions else ""
    class_order = [name.strip() for name in order_text.split(",") if name.strip()]
    traffic = load_traffic(
        traffic, topology, progress=True, unit=config.traffic_unit, class_order=class_order
    )
    if class_fractions:
        traffic = traffic.in_classes(class_fractions)
    # Describe the traffic, and pairs of nodes without a demand.
    notify(describe_traffic(traffic))
    if traffic.classes is not None:
        notify("classes, the highest priority first: " + ", ".join(traffic.classes.names))
    num_pairs = topology.num_nodes * (topology.num_nodes - 1)
    # Demands of several classes share their pair of nodes.
    num_missing = num_pairs - len(
        np.unique(traffic.pairs, axis=0) if traffic.classes is not None else traffic.pairs
    )
    if num_missing:
        notify(f"{num_missing:,} of {num_pairs:,} pairs of nodes are not in the traffic: no demand")
    return topology, traffic


def demand_weights(
    config: ObjectiveConfig,
    topology: Topology,
    traffic: TrafficMatrices,
    notify: Callable[[str], None],
) -> FloatArray | None:
    """Return the (D,) weights of the demands; None for equal weights.

    Objectives that need weights, such as weighted_flow, have random ones by default; max_min has
    weights only if the settings name some.

    Args:
        config: the settings.
        topology: the network.
        traffic: its D demands.
        notify: prints a message with the origin of the weights.

    Raises:
        InputError: weights for an objective without weights, or invalid weights.
    """
    # Refuse weights for other objectives.
    objective = Objective(config.objective)
    accepts_weights = objective.rules.needs_weight or objective.name in (
        ObjectiveName.WEIGHTED_FLOW,
        ObjectiveName.MAX_MIN,
    )
    if not accepts_weights or objective.name == ObjectiveName.PRIORITY:
        if config.weights:
            raise InputError.invalid(
                "--weights",
                "",
                f"the objective {config.objective} has no weights",
                "use weighted_flow, max_min, or a fair objective with weight=given",
            )
        return None
    # NAME=WEIGHT,... are weights of classes; other texts are random:... or the name of a table.
    if "=" in config.weights and not config.weights.startswith(f"{_RANDOM}:"):
        return _weights_of_classes(config.weights, traffic)
    text = config.weights or (_DEFAULT_WEIGHTS if objective.rules.needs_weight else "")
    if not text:
        return None
    notify(f"weights: {text}")
    return load_weights(text, topology, traffic)


def _weights_of_classes(text: str, traffic: TrafficMatrices) -> FloatArray:
    """Return the (D,) weights of the demands from weights of their classes.

    Args:
        text: ``NAME=WEIGHT,...`` with every class of the traffic.
        traffic: the demands.

    Raises:
        InputError: demands without classes, or a class without a finite weight above 0.
    """
    class_weights = assignments(text, "--weights")
    if traffic.classes is None:
        raise InputError.invalid(
            "--weights",
            "",
            f"{text!r} are weights of classes, but the traffic has no classes",
            "add a column class to the traffic, or use a table of weights by source and target",
        )
    names = traffic.classes.names
    if set(class_weights) != set(names) or not all(
        0 < weight < math.inf for weight in class_weights.values()
    ):
        expected = f"a number above 0 for each of {', '.join(names)}"
        raise InputError("--weights", "", expected, text)
    return np.array([class_weights[name] for name in names])[traffic.classes.of_demand]


def describe_traffic(traffic: TrafficMatrices) -> str:
    """Return a description of the traffic in one line: numbers of matrices and demands, times, and
    gaps.
    """
    num_missing = sum(gap.missing for gap in traffic.gaps)
    parts = [f"{traffic.num_matrices} matrices of {traffic.num_demands} demands"]
    parts.append(f"{traffic.timestamps[0]} to {traffic.timestamps[-1]}")
    if traffic.interval_s:
        parts.append(f"every {traffic.interval_s} s")
    if num_missing:
        parts.append(f"{num_missing} matrices missing in {len(traffic.gaps)} gaps")
    if traffic.skipped:
        parts.append(f"{len(traffic.skipped)} files skipped ({traffic.skipped[0]}, ...)")
    return f"{traffic.name}: " + ", ".join(parts)


def busiest_node(topology: Topology, pairs: IntArray, demand: FloatArray) -> tuple[float, int]:
    """Return the largest ratio of a node's traffic to the capacity of its links, and that node.

    The ratio of a node is the larger of sent demand / capacity of outgoing links, and received
    demand / capacity of incoming links.

    Args:
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        demand: (D,) Gbit/s.
    """
    # Two arrays (N,): ratio of the outgoing and of the incoming traffic.
    ratios = []
    for side, ends in enumerate((topology.link_source, topology.link_target)):
        node_capacity = np.bincount(ends, topology.capacity, topology.num_nodes)
        node_demand = np.bincount(pairs[:, side], demand, topology.num_nodes)
        ratios.append(
            np.where(
                node_capacity > 0,
                node_demand / np.where(node_capacity > 0, node_capacity, 1.0),
                0.0,
            )
        )
    node_ratio = np.maximum(*ratios)
    return float(node_ratio.max()), int(node_ratio.argmax())


def load_weights(text: str, topology: Topology, traffic: TrafficMatrices) -> FloatArray:
    """Return (D,) weights of the demands, drawn at random or read from a table.

    Args:
        text: ``random:seed=N``, or the name of a table of source, target and weight.
        topology: the network.
        traffic: the demands.

    Raises:
        InputError: no such file, a missing column, an unknown node, a weight that is not above 0,
            or a demand without a weight.
    """
    if text.partition(":")[0] == _RANDOM:
        seed = int(parse_spec(text).parse_options(seed=0)["seed"])
        if seed < 0:
            raise InputError(text, "seed", "an integer >= 0", seed)
        # One draw for every pair of nodes, so that a pair's weight does not depend on which pairs
        # have traffic.
        draws = np.random.default_rng(seed).integers(
            len(_PRIORITIES), size=topology.num_nodes**2, dtype=np.int8
        )
        # Pair (s, t) has draw s * N + t.
        pair_index = traffic.pairs[:, 0].astype(np.int64) * topology.num_nodes + traffic.pairs[:, 1]
        return np.array(_PRIORITIES)[draws[pair_index]]
    # Read the table: each pair of nodes once.
    path = Path(text)
    if not path.is_file():
        raise InputError.invalid(
            text,
            "weights",
            "no such file",
            "use a table (.csv, .xlsx) of source, target and weight, or random:seed=0",
        )
    weight_of_pair: dict[tuple[int, int], float] = {}
    rows = read_side_table(path, (SOURCE, TARGET, _WEIGHT_COLUMN))
    pairs = [(row.node("source", topology), row.node("target", topology)) for row in rows]
    require_once(rows, pairs, "each source and target")
    for row, pair in zip(rows, pairs, strict=True):
        weight_of_pair[pair] = row.number("weight")
    # (D,) weights of the demands, which all need one.
    weight = np.array([weight_of_pair.get((int(s), int(t)), np.nan) for s, t in traffic.pairs])
    if np.isnan(weight).any():
        s, t = traffic.pairs[int(np.argmax(np.isnan(weight)))]
        raise InputError.invalid(
            text,
            "weight",
            f"no weight for the demand {topology.node_names[s]}->{topology.node_names[t]}",
            "add a row",
        )
    return weight


def _cached_calibration(
    topology: Topology,
    paths: PathSet,
    traffic: TrafficMatrices,
    split: Split,
    target_fraction: float,
    end: Deadline,
) -> float:
    """Return the calibration factor from the disk cache, or compute and store it.

    Args:
        topology: the network.
        paths: candidate paths of each demand.
        traffic: matrices before scaling, Gbit/s.
        split: indices of the matrices; the training matrices are used.
        target_fraction: optimal total flow over total demand, in (0, 1).
        end: deadline of the computation.
    """
    # The split follows from the number of matrices.
    key = content_key(
        _CALIBRATION_FORMAT,
        topology.content_key(),
        paths.key,
        traffic.content_key(),
        target_fraction,
    )
    file = cache_dir("calibration") / f"{key}.json"
    # A missing or damaged cache entry is computed again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(file.read_text())["factor"])
    factor = calibration_factor(topology, paths, traffic, split.train, target_fraction, end)
    with atomic_file(file) as temporary:
        temporary.write_text(json.dumps({"factor": factor}))
    return factor


def rows_of(instance: Instance, split: str) -> Int64Array:
    """Return the (n,) indices of the instance's matrices of a split: ``train``, ``validation``,
    ``test``, or ``all``.
    """
    all_rows: Int64Array = np.arange(instance.traffic.num_matrices)
    return all_rows if split == "all" else getattr(instance.split, split)


def instance_key(instance: Instance) -> str:
    """Return the hexadecimal SHA-256 of an instance's network, traffic, paths, weights and
    bandwidth functions.
    """
    network_keys = (
        instance.topology.content_key(),
        instance.traffic.content_key(),
        instance.paths.key,
    )
    return content_key(*network_keys, *instance.value_arrays)


__getattr__ = with_old_names(__name__, globals())
