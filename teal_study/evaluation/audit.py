"""Adversarial search for the demands under which a scheme loses most against the optimum.

Within a set U of demands, around the measured matrices or between 0 and one limit, the search
maximises

    loss(d) = (V(d) - S(d)) / V(d),   or   (V(d) - S(d)) / sum_e c[e],

with V(d) the value of a feasible allocation by PDHG, S(d) the value of the scheme (the mean of
several schemes, such as one with several seeds), and c[e] the link capacities.  Each loss is a
proof: both allocations exist, so that the scheme loses at least as much against the optimum.  The
largest loss in U may be larger.

U is a box, low[i] <= d[i] <= high[i].  With a hose limit the sums of what each node sends and
receives are limited, too (hose model; Duffield et al., SIGCOMM 1999).  The scheme is a black box,
whereas MetaOpt (Namyar et al., NSDI 2024) models a heuristic by a program.  The search is an
evolution strategy (1 + 16).  A mutation sets some demands to one of their limits, to one common
value, or to random values; it draws them from all demands, or from those with a common source,
target, link or length of the first path.  The number of demands that change adapts to the success.

Axis letters: B matrices, D demands, N nodes, E links.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from teal.app.chart import COLOURS
from teal.app.command import Notify, Outcome
from teal.app.instance import Instance, load_instance
from teal.app.run_files import write_files, write_manifest
from teal.app.settings import seconds
from teal.errors import InputError, SolverError
from teal.formats import save_traffic
from teal.formats.rows import write_csv
from teal.network.rates import ArrayRates
from teal.problem import Problem, assess
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.storage import check_out_folder
from teal.schemes import Scheme, make_scheme
from teal.schemes.models import model_of_each
from teal.solvers import pdhg, pipeline
from teal_study.evaluation.settings import AuditConfig

# Number of mutated matrices of a generation: as many as PDHG solves together.
CHILDREN = pdhg.MAX_LANES
# Certified gap of the optimum, during the search and for the worst demands.
_SEARCH_GAP = 5e-3
_LAST_GAP = 1e-3
# Maximum number of PDHG iterations for the optimum; a wider gap only proves a smaller loss.
_OPTIMUM_ITERATIONS = 2000
# Number of minimum distances, in links, from which demands of the first patterns count as distant.
_PATTERN_DISTANCES = 8
# Share of the largest rate that distant demands have in the first patterns.
_PATTERN_SHARES = (
    0.5,
    0.2,
    0.1,
    0.05,
    0.02,
)
# Relative distance of a share below a round number, which may be a threshold of the scheme.
_BELOW_ROUND_SHARE = 1e-6
# Factors of the share of demands that change, after a success and after a failure.
_CHANGE_GROWTH = 1.5
_CHANGE_SHRINKAGE = 0.93
# Share of the demands that change in the first generation, and its largest value.
_FIRST_SHARE = 0.1
_MAX_SHARE = 0.5
# Smallest rate, relative to the largest, instead of 0: POP partitions the demands above 0, so that
# its partition stays the same.
_MIN_RATE_SHARE = 1e-9
# Probability that a mutation changes a group of demands; range of common values, in powers of ten.
_GROUPED_SHARE = 0.5
_VALUE_DECADES = 3.0
# Number of passes over senders and receivers that scale demands into the hose limit.
_HOSE_PASSES = 8


@dataclasses.dataclass(frozen=True, eq=False)
class AllowedDemands:
    """Set U of demands in which the search may move: a box, and optionally a hose limit.

    Attributes:
        low, high: (D,) smallest and largest rate of each demand, Gbit/s.
        pairs: (D, 2) source and target of the demands.
        sends, receives: (N,) largest sums of the demands of each node, Gbit/s; None for no hose
            limit.
    """

    low: FloatArray
    high: FloatArray
    pairs: np.ndarray
    sends: FloatArray | None = None
    receives: FloatArray | None = None

    def within(self, demand: FloatArray) -> FloatArray:
        """Return demands of the set near the given ones.

        Clip to the box, then scale the demands of each node that exceeds its hose limit, which
        takes precedence over ``low``.

        Args:
            demand: (D,) Gbit/s.
        """
        demand = np.clip(demand, self.low, self.high)
        if self.sends is None or self.receives is None:
            return demand
        # Scale the demands of senders, then of receivers; demands only fall, so no sum rises.
        for _ in range(_HOSE_PASSES):
            for endpoint, limit in ((0, self.sends), (1, self.receives)):
                node = self.pairs[:, endpoint]
                node_total = np.bincount(node, demand, minlength=len(limit))
                scale = np.where(node_total > limit, limit / np.maximum(node_total, 1e-300), 1.0)
                demand = demand * scale[node]
        return demand


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """Improvement that a generation of the search found.

    Attributes:
        evaluations: number of matrices that were tried so far.
        elapsed_s: seconds since the start.
        loss: proven loss of the scheme, relative to the optimum or the sum of all capacities.
        value: value of the scheme, Gbit/s.
        optimum: value of the allocation by PDHG, Gbit/s.
    """

    evaluations: int
    elapsed_s: float
    loss: float
    value: float
    optimum: float


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """Result of a search.

    Attributes:
        demand: (D,) Gbit/s, the worst demands found.
        generations: improvements in order; the first one is that of the measured matrices.
    """

    demand: FloatArray
    generations: tuple[Generation, ...]


def demand_set(instance: Instance, box: float, *, hose: bool, up_to: float = 0.0) -> AllowedDemands:
    """Return the set of demands around the matrices of an instance, or between 0 and one limit.

    Args:
        instance: the matrices.
        box: demands lie between (1 - box) times their smallest and (1 + box) times their largest
            rate.
        hose: whether what a node sends and receives stays within the largest sums of the matrices.
        up_to: demands lie between 0 and this share of the mean link capacity instead; 0 for
            ``box``.
    """
    traffic = instance.traffic
    num_nodes = instance.topology.num_nodes
    low = np.full(traffic.num_demands, np.inf)
    high = np.zeros(traffic.num_demands)
    sends = np.zeros(num_nodes)
    receives = np.zeros(num_nodes)
    # Extremes of each demand, and largest sums of each node, over all matrices.
    for chunk in traffic.chunks():
        low = np.minimum(low, chunk.min(0))
        high = np.maximum(high, chunk.max(0))
        for rates in chunk:
            sends = np.maximum(sends, np.bincount(traffic.pairs[:, 0], rates, minlength=num_nodes))
            receives = np.maximum(
                receives, np.bincount(traffic.pairs[:, 1], rates, minlength=num_nodes)
            )
    low = max(0.0, 1 - box) * low
    high = (1 + box) * high
    if up_to:
        high = np.full(traffic.num_demands, up_to * float(instance.topology.capacity.mean()))
        low = _MIN_RATE_SHARE * high
    return (
        AllowedDemands(low, high, traffic.pairs, sends, receives)
        if hose
        else AllowedDemands(low, high, traffic.pairs)
    )


def audit(
    instance: Instance,
    schemes: Sequence[Scheme],
    allowed: AllowedDemands,
    seconds: float,
    seed: int = 0,
    max_matrices: int = 0,
    of_capacity: bool = False,
    report: Callable[[Generation], None] = lambda _: None,
) -> Audit:
    """Search for the demands under which schemes lose most, on average over the schemes.

    Start from measured matrices and patterns that are hard for heuristics, then mutate the
    incumbent (evolution strategy).

    Args:
        instance: network, paths, matrices.
        schemes: at least one, for any value-maximising objective.
        allowed: set of demands in which the search moves.
        seconds: length of the search; the measured matrices are tried in any case.
        seed: seed of the mutations.
        max_matrices: approximate number of matrices that are tried; 0 for no limit.
        of_capacity: whether a loss is relative to the sum of all capacities instead of the optimum.
        report: called with every improvement.

    Raises:
        SolverError: the scheme has no usable allocation of any matrix.
        KeyboardInterrupt: on Ctrl-C during the measured matrices; later it ends the search with the
            best so far.
    """
    begin = time.perf_counter()
    mutations = _Mutations(instance, allowed, np.random.default_rng(seed))
    # Start: measured matrices, evenly spaced.
    num_matrices = instance.traffic.num_matrices
    num_parents = min(CHILDREN, num_matrices)
    matrix_indices = np.unique(np.linspace(0, num_matrices - 1, num_parents).round().astype(int))
    parents = np.stack([allowed.within(rates) for rates in instance.traffic.read(matrix_indices)])
    total_capacity = float(instance.topology.capacity.sum()) if of_capacity else 0.0
    incumbent = _Incumbent(
        instance.problem(parents), schemes, total_capacity, parents[0], begin, report
    )

    def may_continue() -> bool:
        """Whether neither the time nor the number of matrices has reached its limit."""
        return time.perf_counter() - begin < seconds and (
            not max_matrices or incumbent.evaluations < max_matrices
        )

    if not incumbent.improve(parents):
        raise SolverError("audit: the scheme has no usable allocation of the measured matrices")
    patterns = _patterns(instance, allowed)
    changed_share = _FIRST_SHARE
    try:
        # Patterns that are hard for heuristics.
        for first_pattern in range(0, len(patterns), CHILDREN):
            if may_continue():
                incumbent.improve(patterns[first_pattern : first_pattern + CHILDREN])
        # Evolution strategy: mutate the incumbent, and adapt the share of demands that change.
        while may_continue():
            children = np.stack(
                [mutations.mutate(incumbent.demand, changed_share) for _ in range(CHILDREN)]
            )
            changed_share = (
                min(_MAX_SHARE, changed_share * _CHANGE_GROWTH)
                if incumbent.improve(children)
                else max(1 / len(incumbent.demand), changed_share * _CHANGE_SHRINKAGE)
            )
    except KeyboardInterrupt:
        pass
    # Certify the final loss with a tighter optimum.
    incumbent.tighten()
    return Audit(incumbent.demand, tuple(incumbent.generations))


class _Incumbent:
    """Worst demands so far, and the proven loss under them.

    Args:
        problem: network, paths and objective; its demands do not matter.
        schemes: at least one.
        total_capacity: Gbit/s, relative to which a loss is measured; 0 for the optimum of each
            matrix.
        demand: (D,) demands before any are tried.
        begin: start of the search, by ``time.perf_counter``.
        report: called with every improvement.

    Attributes:
        demand: (D,) Gbit/s, the worst demands.
        evaluations: number of matrices that were tried.
        generations: the improvements, in order.
    """

    def __init__(
        self,
        problem: Problem,
        schemes: Sequence[Scheme],
        total_capacity: float,
        demand: FloatArray,
        begin: float,
        report: Callable[[Generation], None],
    ) -> None:
        """Start without a loss, so that the first matrices improve it."""
        self._problem = problem
        self._schemes = schemes
        self._total_capacity = total_capacity
        self._begin = begin
        self._report = report
        # (3,) loss, mean value of the schemes, and optimum under the worst demands.
        self._metrics: FloatArray = np.full(3, -np.inf)
        self.demand = demand
        self.evaluations = 0
        self.generations = list[Generation]()

    def improve(self, matrices: FloatArray) -> bool:
        """Try matrices (B, D); return whether the loss under one of them exceeds the
        incumbent's.
        """
        metrics = self._evaluate(matrices, _SEARCH_GAP)
        self.evaluations += len(matrices)
        worst_row = int(np.nan_to_num(metrics[:, 0], nan=-np.inf).argmax())
        if not metrics[worst_row, 0] > self._metrics[0]:
            return False
        self._metrics = metrics[worst_row]
        self.demand = matrices[worst_row]
        self._record()
        return True

    def tighten(self) -> None:
        """Recompute the loss under the worst demands with a smaller gap of the optimum."""
        metrics = self._evaluate(self.demand[None], _LAST_GAP)[0]
        if metrics[0] > self._metrics[0]:
            self._metrics = metrics
            self._record()

    def _evaluate(self, matrices: FloatArray, gap: float) -> FloatArray:
        """Return loss, mean value of the schemes, and optimum (B, 3) of matrices (B, D).

        Args:
            matrices: (B, D) Gbit/s.
            gap: certified gap of the optimum.
        """
        problem = self._problem.with_demand(matrices)
        return _loss_metrics(problem, self._schemes, self._total_capacity, gap)

    def _record(self) -> None:
        """Append the loss under the worst demands to the improvements, and report it."""
        elapsed_s = time.perf_counter() - self._begin
        loss, value, optimum = map(float, self._metrics)
        self.generations.append(
            Generation(
                evaluations=self.evaluations,
                elapsed_s=elapsed_s,
                loss=loss,
                value=value,
                optimum=optimum,
            )
        )
        self._report(self.generations[-1])


class _Mutations:
    """Random changes of demands within their limits.

    Args:
        instance: network and paths.
        allowed: limits of the demands.
        rng: random numbers.
    """

    def __init__(
        self, instance: Instance, allowed: AllowedDemands, rng: np.random.Generator
    ) -> None:
        self._allowed = allowed
        self._rng = rng
        self._groups = _groups(instance)

    def mutate(self, demand: FloatArray, share: float) -> FloatArray:
        """Return demands with some of them changed.

        The chosen demands are set to their lower or upper limit, to one common value (uniform,
        log-uniform, or that of another demand), to random values within their limits, or permuted.

        Args:
            demand: (D,) Gbit/s.
            share: approximate share of the demands that change.
        """
        rng = self._rng
        changed_demands = self._choose(len(demand), share)
        mutated = demand.copy()
        low = self._allowed.low[changed_demands]
        high = self._allowed.high[changed_demands]
        # One of seven changes, with equal probabilities: lower limit, upper limit, common value
        # (uniform, log-uniform, of another demand), random values, permutation.
        match rng.integers(7):
            case 0:
                mutated[changed_demands] = low
            case 1:
                mutated[changed_demands] = high
            case 2:
                mutated[changed_demands] = rng.random() * high.max()
            case 3:
                mutated[changed_demands] = 10 ** rng.uniform(-_VALUE_DECADES, 0) * high.max()
            case 4:
                mutated[changed_demands] = rng.choice(demand)
            case 5:
                mutated[changed_demands] = low + rng.random(len(changed_demands)) * (high - low)
            case _:
                mutated[changed_demands] = rng.permutation(mutated[changed_demands])
        return self._allowed.within(mutated)

    def _choose(self, num_demands: int, share: float) -> Int64Array:
        """Draw the indices of the demands to change: a share of all demands, or of one random
        group.

        Args:
            num_demands: number of demands, D.
            share: share of the demands that change; of a group at least this share changes.
        """
        rng = self._rng
        candidates = np.arange(num_demands, dtype=np.int64)
        if self._groups and rng.random() < _GROUPED_SHARE:
            candidates = self._groups[rng.integers(len(self._groups))]
            share = rng.uniform(share, 1)
        chosen = candidates[rng.random(len(candidates)) < share]
        return chosen if len(chosen) else rng.choice(candidates, 1)


def _patterns(instance: Instance, allowed: AllowedDemands) -> FloatArray:
    """Return demand patterns (n, D), Gbit/s, that are hard for heuristics.

    Neighbours have their upper limit, distant nodes a small share of theirs: small demands of
    distant nodes use capacity of many links, which large demands of neighbours then lack (MetaOpt,
    section 4.1).  There is a pattern for each minimum distance and share.

    Args:
        instance: network and paths.
        allowed: limits of the demands.
    """
    # (D,) number of links of the first path; 1 for neighbours.
    hops = instance.paths.hops[:, 0]
    distances = np.unique(hops[hops > 1])
    distance_index = np.unique(
        np.linspace(0, len(distances) - 1, _PATTERN_DISTANCES).round().astype(int)
    )
    min_distances = distances[distance_index] if len(distances) else []
    box_width = allowed.high - allowed.low
    # A pattern for each minimum distance and share: neighbours (1 link) at their upper limit,
    # demands of at least this distance at this share of their range, others at their lower limit.
    patterns = [
        allowed.within(
            allowed.low
            + box_width
            * np.where(
                hops >= min_distance, share * (1 - _BELOW_ROUND_SHARE), np.where(hops == 1, 1.0, 0)
            )
        )
        for min_distance in min_distances
        for share in _PATTERN_SHARES
    ]
    return np.array(patterns).reshape(-1, len(hops))


def _groups(instance: Instance) -> list[Int64Array]:
    """Return groups of demand indices: those with a common source, target, link of the first path,
    or length of the first path.
    """
    # First paths of all demands: each pair of a path and one of its links, and numbers of links.
    paths = instance.paths
    path_of_entry, link_of_entry = paths.incidences(max_paths=1)
    hops = paths.hops[:, 0]
    groups = [
        np.flatnonzero(paths.pairs[:, side] == node)
        for side in (0, 1)
        for node in np.unique(paths.pairs[:, side])
    ]
    groups += [np.flatnonzero(hops == num_links) for num_links in np.unique(hops[hops > 0])]
    # Demands whose first paths share a link: sort the pairs by link, and split them where the link
    # changes; the demand of path slot d K + k is d.
    order = np.argsort(link_of_entry, kind="stable")
    split_positions = np.flatnonzero(np.diff(link_of_entry[order])) + 1
    groups += np.split(path_of_entry[order] // paths.num_paths, split_positions)
    return [group for group in groups if len(group) > 1]


def _loss_metrics(
    problem: Problem, schemes: Sequence[Scheme], total_capacity: float, gap: float
) -> FloatArray:
    """Return loss, mean value of the schemes, and optimum (B, 3) of each matrix; NaN if a scheme
    has no usable allocation.

        loss = (best - value) / best, or / total_capacity

    where best is the larger of PDHG's value and the values of the schemes.

    Args:
        problem: B matrices.
        schemes: at least one.
        total_capacity: Gbit/s, relative to which a loss is measured; 0 for the optimum of each
            matrix.
        gap: certified gap of the optimum.
    """
    pdhg_values = pipeline.solve(
        problem, gap=gap, max_iterations=_OPTIMUM_ITERATIONS
    ).value.tolist()
    metrics = np.full((problem.batch, 3), np.nan)
    for b in range(problem.batch):
        matrix_problem = problem.row(b)
        assessments = [assess(matrix_problem, scheme.solve(matrix_problem)) for scheme in schemes]
        if all(assessment.status[0].usable for assessment in assessments) and pdhg_values[b] > 0:
            values = [float(assessment.value[0]) for assessment in assessments]
            mean_value = sum(values) / len(values)
            best = max(pdhg_values[b], *values)
            metrics[b] = (best - mean_value) / (total_capacity or best), mean_value, best
    return metrics


def plot_audit(path: Path, generations: Sequence[Generation], scheme: str, measure: str) -> None:
    """Plot the proven loss against the number of matrices that were tried.

    Args:
        path: image file to write.
        generations: improvements in order.
        scheme: name of the scheme, for the title.
        measure: ``optimum`` or ``capacity``, relative to which the loss is measured.
    """
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.step(
        [generation.evaluations for generation in generations],
        [100 * generation.loss for generation in generations],
        where="post",
        color=COLOURS[0],
        marker="o",
        markersize=3,
    )
    axes.set_xlabel("matrices tried")
    axes.set_ylabel(
        f"proven loss (% of the {'optimum' if measure == 'optimum' else 'sum of capacities'})"
    )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_title(f"worst demands for {scheme}", fontsize="medium")
    figure.savefig(path, dpi=140)


FILES = WORST, LOSSES, PLOT, MANIFEST = ("worst.csv", "losses.csv", "losses.png", "manifest.json")


def run_audit(config: AuditConfig, notify: Callable[[str], None]) -> Audit:
    """Search for the worst demands, write matrix, losses, plot and manifest, and return the result.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    # Load the instance and the schemes.
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    instance = load_instance(config, notify)
    if instance.objective.rules.carries_all or instance.objective.rules.is_sequence:
        raise InputError(
            "--objective", "", "an objective that maximises a value", instance.objective.name
        )
    model_by_scheme = model_of_each(config.scheme, config.model, notify)
    schemes = [make_scheme(scheme, model_by_scheme[scheme]) for scheme in config.scheme]

    def report_generation(generation: Generation) -> None:
        """Report the proven loss of an improvement."""
        notify(
            f"{generation.evaluations:,} matrices, {generation.elapsed_s:.0f} s: proven loss "
            f"{100 * generation.loss:.2f}%"
        )

    # Search.
    allowed = demand_set(instance, config.box, hose=config.hose, up_to=config.up_to)
    result = audit(
        instance,
        schemes,
        allowed,
        seconds(config.time_budget),
        config.seed,
        of_capacity=config.measure == "capacity",
        report=report_generation,
    )
    # Write the results.
    write_files(
        config.out,
        {
            WORST: partial(_write_matrix, instance=instance, result=result),
            LOSSES: partial(write_csv, rows=result.generations),
            PLOT: partial(
                plot_audit,
                generations=result.generations,
                scheme=", ".join(config.scheme),
                measure=config.measure,
            ),
            MANIFEST: partial(write_manifest, settings=config),
        },
    )
    return result


def _write_matrix(path: Path, instance: Instance, result: Audit) -> None:
    """Write the worst demands as a traffic file of one matrix.

    Args:
        path: file to write.
        instance: network and traffic of the search, for nodes, pairs and the first time stamp.
        result: the worst demands.
    """
    traffic = dataclasses.replace(
        instance.traffic,
        timestamps=instance.traffic.timestamps[:1],
        rates=ArrayRates(np.atleast_2d(result.demand)),
        scale=1.0,
        interval_s=0,
    )
    save_traffic(path, traffic, instance.topology)


def audit_outcome(config: AuditConfig, notify: Notify) -> Outcome:
    """Run ``teal audit``; return the proven loss, under the worst and under the input matrices.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    result = run_audit(config, notify)
    first_generation = result.generations[0]
    last_generation = result.generations[-1]
    unit = "" if config.measure == "optimum" else " of the sum of all capacities"
    return Outcome(
        text=f"{', '.join(config.scheme)} loses at least {100 * last_generation.loss:.2f}%{unit} "
        f"({last_generation.value:.6g} of {last_generation.optimum:.6g} Gbit/s); on the input "
        f"matrices, clipped to the limits, {100 * first_generation.loss:.2f}%",
        written=", ".join(str(config.out / name) for name in FILES),
        data={
            "loss": last_generation.loss,
            "value": last_generation.value,
            "optimum": last_generation.optimum,
            "loss_on_given_matrices": first_generation.loss,
            "tried": last_generation.evaluations,
        },
    )
