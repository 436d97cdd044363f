"""From the settings of a command to network, traffic and paths."""

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

from teal.app.path_sets import candidate_paths, chosen_paths, of_classes
from teal.app.settings import (
    InstanceConfig,
    ObjectiveConfig,
    ProgramConfig,
    ProgramFileConfig,
    assignments,
)
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
from teal.solvers import pdhg
from teal.spec import parse_spec

# Relative certified gap at which PDHG stops for each optimum.
_TARGET_GAP = 1e-3
# Absolute error of the satisfied share; the optima are not known better.
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
# Width of the bracket of ln(factor) at which bisection ends: the factor is known to 1 in a million
_MIN_BRACKET = 1e-6
# Seconds after which the progress bar of a calibration is shown.
_SILENT_S = 1.0


def calibration_factor(
    topology: Topology,
    paths: PathSet,
    traffic: TrafficMatrices,
    rows: Int64Array,
    share: float,
    end: Deadline | None = None,
) -> float:
    """The factor by which all demands are multiplied so that the optimal total flow carries
    ``share`` of the demand.

    That is the share in the median over the matrices ``rows``: over up to 21 of them, evenly
    spread, fewer on large networks (at least 5).  Each optimum is solved by PDHG to a certified gap
    of 0.1%, without an LP solver.  The satisfied share falls as the factor grows, so that the
    factor is bracketed and then found by bisection in its logarithm.

    Args:
        topology: the network.
        paths: candidate paths of each demand, in the order of the traffic's demands.
        traffic: matrices before scaling, Gbit/s.
        rows: indices of the matrices to take into account, the training matrices.
        share: share of the demand, in (0, 1).
        end: after which there is no factor; None for none.

    Raises:
        InputError: ``share`` not in (0, 1), or more than the network can route at any load.
        SolverError: an optimum is not known to 1% after 2,000 iterations, or the deadline is over.
    """
    where = "--calibrate"
    if not 0 < share < 1:
        raise InputError(where, "", "a share between 0 and 1", share)
    count = int(np.clip(_TARGET_ENTRIES // traffic.num_demands, _MIN_MATRICES, _MAX_MATRICES))
    demand = traffic.read(spread(rows, count))
    demand = demand[demand.sum(1) > 0]
    if not len(demand):
        raise InputError(where, "traffic", "a training matrix with demand", "none")
    base = Problem.create(topology, paths, Objective(), demand)
    routable = float((base.demand * base.routable).sum(1).div(base.demand.sum(1)).median())
    if routable <= share:
        raise InputError(
            where, "", f"a share below the {routable:.3f} of demand that has a path", share
        )
    with progress_bar(
        desc=f"calibrating on {len(demand)} matrices", unit="load", delay=_SILENT_S, leave=False
    ) as bar:
        return _bisected(_Search(base, bar, end or Deadline()), base, share)


def _bisected(search: _Search, base: Problem, share: float) -> float:
    """The factor at which the optimum satisfies ``share``."""
    # Start at the load at which even splits just fill the busiest link.
    low = high = -math.log(float(base.utilisation(base.even_splits).amax(1).median()))
    while search.median_share(high) > share:
        low = high
        high = high + math.log(2)
    while search.median_share(low) < share:
        low, high = low - math.log(2), low
    while high - low > _MIN_BRACKET:
        middle = (low + high) / 2
        reached = search.median_share(middle)
        if abs(reached - share) < _TOLERANCE:
            return math.exp(middle)
        low, high = (middle, high) if reached > share else (low, middle)
    return math.exp((low + high) / 2)


class _Search:
    """The median satisfied share at a factor.  Each call starts PDHG from the final state of the
    previous call.
    """

    def __init__(self, base: Problem, bar: Any, end: Deadline) -> None:
        self._base = base
        self._bar = bar
        self._end = end
        self._state: pdhg.PdhgState | None = None

    def median_share(self, log_factor: float) -> float:
        """The median over the matrices of optimal flow / demand, with all demands times
        exp(log_factor).
        """
        problem = self._base.with_demand(self._base.demand * math.exp(log_factor))
        result = pdhg.solve(
            problem,
            gap=_TARGET_GAP,
            deadline=self._end.remaining,
            max_iterations=_MAX_ITERATIONS,
            warm_start=self._state,
        )
        if self._end.is_over:
            raise SolverError(
                "--calibrate: no factor before the deadline: use a longer deadline, or none"
            )
        largest_gap = float(result.gap.max())
        if largest_gap > _MAX_GAP:
            raise SolverError(
                f"--calibrate: the certified gap is {100 * largest_gap:.1f}% after "
                f"{result.iterations} iterations, but must be at most {100 * _MAX_GAP:.0f}%: try "
                "another share or fewer demands"
            )
        self._state = result.state
        self._bar.update()
        # The optimum lies between value and bound; their mean halves the largest error.
        return float(((result.value + result.bound) / 2 / problem.demand.sum(1)).median())


# Part of the cache key: increment it when calibration changes.
_CALIBRATION_FORMAT = 2
# Every cable is a group.
_CABLES = "cables"
# Weights that are drawn.
_RANDOM = "random"
# Default weights of weighted_flow.
_USUAL_WEIGHTS = f"{_RANDOM}:seed=0"
_WEIGHT = Column("weight", Kind.NUMBER, required=True)
# Weights that `random:seed=N` draws from.
_PRIORITIES = (1.0, 2.0, 4.0)


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """The input of a command.

    Attributes:
        topology: as loaded.
        traffic: scaled by the calibration, if there is one.
        paths: candidate paths of the traffic's pairs.
        objective: the program.
        weight: (D,) value of one Gbit/s of each demand, for weighted_flow; else None.
        split: training, validation and test rows.
        device: device of the tensors.
        protection: promise that the flows keep; None for none.
        paths_s: seconds to compute the paths or to read them from the cache.
        functions: bandwidth functions of the demands; None for none.
        max_latency: (D,) ms that a path of each demand may take, infinite for no limit; None for no
            limits.
        end: deadline of all that is computed for it.
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
    def worth(self) -> tuple[FloatArray, ...]:
        """The arrays that say what demands are worth, for keys of results; () where all are worth
        the same.
        """
        functions = () if self.functions is None else (self.functions.slope, self.functions.end)
        return (*(() if self.weight is None else (self.weight,)), *functions)

    def problem(self, demand: FloatArray, *, capacity: FloatArray | None = None) -> Problem:
        """The problem of matrices (B, D) Gbit/s, in float64, under ``capacity`` (E,) or the
        topology's.
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
        """The instance with a surviving path for each demand that would have none during a failure.

        Only a demand whose nodes the network still connects during that failure gets a path.

        Args:
            failures: numbers of the links of each; links of capacity 0 are down in all of them.
            notify: told how many paths are added.

        Raises:
            InputError: see :func:`teal.network.reachability.with_surviving_paths`.
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
        more = dataclasses.replace(self, paths=paths, protection=None)
        protected = None if self.protection is None else _protection(more, self.protection.groups)
        return dataclasses.replace(more, protection=protected)


def load_instance(
    config: InstanceConfig,
    notify: Callable[[str], None] = lambda _: None,
    select: Callable[[TrafficMatrices], TrafficMatrices] = lambda traffic: traffic,
    on_topology: Callable[[Topology], None] = lambda _: None,
    deadline: float = math.inf,
) -> Instance:
    """Load everything that ``config`` names.

    Args:
        config: the settings.
        notify: called with what was assumed and found.
        select: reduces the traffic before paths are computed.
        on_topology: called with the network before anything is computed for it.
        deadline: seconds for all that is computed for it, from when network and traffic are read.

    Raises:
        InputError: invalid user input.
        SolverError: the factor of --calibrate was not found in time.
    """
    # Report an unavailable device before anything is read.
    _check_device(config)
    topology, traffic = load_network(config.topology, config.traffic, config, notify, on_topology)
    return instance_of(topology, select(traffic), config, notify, deadline)


def _check_device(config: ProgramConfig) -> None:
    """Raise InputError for a device that is not there, or that cannot run the program."""
    pick_device(config.device)
    if config.cpu_alone and config.device not in ("auto", "cpu"):
        raise InputError("--device", "", f"auto or cpu, for {config.cpu_alone}", config.device)


def _device_of(config: ProgramConfig, paths: PathSet) -> torch.device:
    """The device of the settings; for auto the one that is expected to be faster."""
    if config.device != "auto":
        return pick_device(config.device)
    return pick_device("auto" if suits_gpu(config, paths, torch.get_num_threads()) else "cpu")


def suits_gpu(config: ProgramConfig, paths: PathSet, threads: int) -> bool:
    """Whether ``--device auto`` takes a GPU where there is one.

    Args:
        config: the settings.
        paths: the candidate paths.
        threads: threads that the CPU has for a solve.
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
    """Build the instance of a network and its traffic, over candidate paths.

    Args:
        topology: the network.
        traffic: its matrices.
        config: program and candidate paths.
        notify: called with what was found.
        deadline: seconds for all that is computed.

    Raises:
        InputError: invalid settings.
        SolverError: the factor of --calibrate was not found in time.
    """
    _check_device(config)
    objective = Objective(config.objective)
    split = traffic.split()
    end = Deadline.after(deadline)
    # Candidate paths of the pairs, each pair once.
    begin = time.perf_counter()
    pairs = traffic.pairs if traffic.classes is None else np.unique(traffic.pairs, axis=0)
    pair_paths = candidate_paths(config, topology, pairs)
    paths_s = time.perf_counter() - begin
    # Scale the demands over these paths, so that they do not depend on a choice of paths for them.
    if config.calibrate is not None:
        paths = of_classes(config, topology, traffic, pair_paths)
        factor = _cached_calibration(topology, paths, traffic, split, config.calibrate, end)
        notify(
            f"demands x {factor:.6g}: the optimum satisfies {config.calibrate:g} of the median "
            "training matrix"
        )
        traffic = traffic.scaled(factor)
    # Weights and bandwidth functions.
    weight = given_weights(config, topology, traffic, notify)
    functions = None
    if config.functions is not None:
        functions = read_bandwidth_functions(
            config.functions, topology, traffic.pairs, traffic.classes
        )
    # Choose further paths, and assign the paths of the pairs to their demands.
    begin = time.perf_counter()
    if config.paths is None and config.chooses_paths and not end.is_over:
        pair_paths = chosen_paths(
            config, topology, traffic, pair_paths, objective, weight, notify, end
        )
    paths = of_classes(config, topology, traffic, pair_paths)
    paths_s += time.perf_counter() - begin
    _notify_of_paths(paths, notify)
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
    """(D,) ms that a path of each demand may take; None for no limits."""
    limits = assignments(config.latency_limits, "--latency-limits")
    if traffic.classes is None or not limits:
        return None
    return np.array(latency_limits(traffic.classes.names, limits))[traffic.classes.of_demand]


def _protection(instance: Instance, groups: Sequence[Sequence[int]]) -> Protection:
    """Promises over the paths of an instance without any; see
    :meth:`teal.Problem.with_protection`.
    """
    problem = instance.problem(np.zeros((1, instance.paths.num_demands)))
    return Protection.of(problem.ops, instance.topology.num_links, groups)


def with_protection(instance: Instance, protect: str, notify: Callable[[str], None]) -> Instance:
    """The instance with promises that survive every group.

    Args:
        instance: without protection.
        protect: ``cables``, or a file of groups.
        notify: called with what was found.

    Raises:
        InputError: an invalid file; see :meth:`teal.Problem.with_protection`.
    """
    groups = failing_links("" if protect == _CABLES else protect, instance.topology)
    problem = instance.problem(np.zeros((1, instance.paths.num_demands)))
    protection = _protection(instance, groups)
    num_unprotected = int(protection.unprotected(problem.under(protection).program).sum())
    kind = "cable" if protect == _CABLES else "group"
    notify(
        f"guarantees survive the failure of any one of {len(groups)} {kind}s; {num_unprotected:,} "
        "demands cannot be protected"
    )
    return dataclasses.replace(instance, protection=protection)


def load_network(
    topology: Any,
    traffic: Any,
    config: ProgramFileConfig,
    notify: Callable[[str], None] = lambda _: None,
    on_topology: Callable[[Topology], None] = lambda _: None,
) -> tuple[Topology, TrafficMatrices]:
    """Network and traffic, as they are or from files and names; arguments as in
    :func:`load_instance`.
    """
    topology = topology_from(topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    on_topology(topology)
    for note in topology.notes:
        notify(note)
    shares = assignments(config.classes, "--classes") if "=" in config.classes else {}
    names = config.classes if not shares else ""
    order = [name.strip() for name in names.split(",") if name.strip()]
    traffic = load_traffic(
        traffic, topology, progress=True, unit=config.traffic_unit, class_order=order
    )
    if shares:
        traffic = traffic.in_classes(shares)
    notify(describe_traffic(traffic))
    if traffic.classes is not None:
        notify("classes, the highest priority first: " + ", ".join(traffic.classes.names))
    pairs = topology.num_nodes * (topology.num_nodes - 1)
    missing = pairs - len(
        np.unique(traffic.pairs, axis=0) if traffic.classes is not None else traffic.pairs
    )
    if missing:
        notify(f"{missing:,} of {pairs:,} pairs of nodes are not in the traffic: no demand")
    return topology, traffic


def given_weights(
    config: ObjectiveConfig,
    topology: Topology,
    traffic: TrafficMatrices,
    notify: Callable[[str], None],
) -> FloatArray | None:
    """(D,) weights of the demands under weighted_flow and, where there are any, max_min; else
    None.
    """
    objective = Objective(config.objective)
    takes_weights = objective.rules.needs_weight or objective.name in (
        ObjectiveName.WEIGHTED_FLOW,
        ObjectiveName.MAX_MIN,
    )
    if not takes_weights or objective.name == ObjectiveName.PRIORITY:
        if config.weights:
            expected = "the objective weighted_flow or max_min, or weight=given of a fair one"
            raise InputError("--weights", "", expected, config.objective)
        return None
    if "=" in config.weights and not config.weights.startswith(f"{_RANDOM}:"):
        return _weights_of_classes(config.weights, traffic)
    text = config.weights or (_USUAL_WEIGHTS if objective.rules.needs_weight else "")
    if not text:
        return None
    notify(f"weights: {text}")
    return load_weights(text, topology, traffic)


def _weights_of_classes(text: str, traffic: TrafficMatrices) -> FloatArray:
    """(D,) weight of the class of each demand.

    Raises:
        InputError: demands without classes, or a class without a weight or with one that is not
            above 0.
    """
    weight_of = assignments(text, "--weights")
    if traffic.classes is None:
        raise InputError("--weights", "", "traffic with classes, for weights of classes", text)
    names = traffic.classes.names
    if set(weight_of) != set(names) or not all(
        0 < weight < math.inf for weight in weight_of.values()
    ):
        expected = f"a number above 0 for each of {', '.join(names)}"
        raise InputError("--weights", "", expected, text)
    return np.array([weight_of[name] for name in names])[traffic.classes.of_demand]


def describe_traffic(traffic: TrafficMatrices) -> str:
    """One line: number of matrices and demands, times, and what is missing."""
    missing = sum(gap.missing for gap in traffic.gaps)
    parts = [f"{traffic.num_matrices} matrices of {traffic.num_demands} demands"]
    parts.append(f"{traffic.timestamps[0]} to {traffic.timestamps[-1]}")
    if traffic.interval_s:
        parts.append(f"every {traffic.interval_s} s")
    if missing:
        parts.append(f"{missing} missing in {len(traffic.gaps)} gaps")
    if traffic.skipped:
        parts.append(f"{len(traffic.skipped)} files skipped ({traffic.skipped[0]}, ...)")
    return f"{traffic.name}: " + ", ".join(parts)


def busiest_node(topology: Topology, pairs: IntArray, demand: FloatArray) -> tuple[float, int]:
    """The largest share of the capacity of a node's links that what it sends or receives needs, and
    that node.

    Args:
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        demand: (D,) Gbit/s.
    """
    needs = []
    for side, ends in enumerate((topology.link_source, topology.link_target)):
        has = np.bincount(ends, topology.capacity, topology.num_nodes)
        wants = np.bincount(pairs[:, side], demand, topology.num_nodes)
        needs.append(np.where(has > 0, wants / np.where(has > 0, has, 1.0), 0.0))
    largest_need = np.maximum(*needs)
    return float(largest_need.max()), int(largest_need.argmax())


def load_weights(text: str, topology: Topology, traffic: TrafficMatrices) -> FloatArray:
    """(D,) weights from ``random:seed=N`` or a table of source, target and weight.

    Raises:
        InputError: no such file, a column missing, an unknown node, a weight that is not positive,
            or a demand without one.
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
        number = traffic.pairs[:, 0].astype(np.int64) * topology.num_nodes + traffic.pairs[:, 1]
        return np.array(_PRIORITIES)[draws[number]]
    path = Path(text)
    if not path.is_file():
        expected = "a table (.csv, .xlsx) of source, target, weight, or random:seed=0"
        raise InputError(text, "weights", expected, "no such file")
    weights: dict[tuple[int, int], float] = {}
    rows = read_side_table(path, (SOURCE, TARGET, _WEIGHT))
    pairs = [(row.node("source", topology), row.node("target", topology)) for row in rows]
    require_once(rows, pairs, "each source and target")
    for row, pair in zip(rows, pairs, strict=True):
        weights[pair] = row.number("weight")
    weight = np.array([weights.get((int(s), int(t)), np.nan) for s, t in traffic.pairs])
    if np.isnan(weight).any():
        s, t = traffic.pairs[int(np.argmax(np.isnan(weight)))]
        raise InputError(
            text, "weight", f"one for {topology.node_names[s]}->{topology.node_names[t]}", "none"
        )
    return weight


def _cached_calibration(
    topology: Topology,
    paths: PathSet,
    traffic: TrafficMatrices,
    split: Split,
    share: float,
    end: Deadline,
) -> float:
    key = content_key(
        _CALIBRATION_FORMAT, topology.content_key(), paths.key, traffic.content_key(), share
    )
    file = cache_dir("calibration") / f"{key}.json"
    # A missing or damaged cache entry is computed again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(file.read_text())["factor"])
    factor = calibration_factor(topology, paths, traffic, split.train, share, end)
    with atomic_file(file) as temporary:
        temporary.write_text(json.dumps({"factor": factor}))
    return factor


def rows_of(instance: Instance, split: str) -> Int64Array:
    """Rows of ``train``, ``validation``, ``test`` or ``all``."""
    all_rows: Int64Array = np.arange(instance.traffic.num_matrices)
    return all_rows if split == "all" else getattr(instance.split, split)


def instance_key(instance: Instance) -> str:
    """Content key of network, traffic, paths, and what demands are worth."""
    of_network = instance.topology.content_key(), instance.traffic.content_key(), instance.paths.key
    return content_key(*of_network, *instance.worth)
