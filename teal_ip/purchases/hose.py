r"""Demands of which only the sums at each node are known: the hose model (Duffield et al. 1999).

    H = {x >= 0 of the pairs:  sum over t of x_{s,t} <= out_s,   sum over s of x_{s,t} <= in_t}.

Which matrix of H is the worst for a network is no convex program: the largest utilisation max over
x of min over splits is max over x, y of sum_d x_d dist_d(y), linear in each of the two.
:func:`worst_matrices` improves x (a transport problem) and the prices y (the engine) in turn, from
several starts: a lower limit of how bad H can be, and in :func:`buy_for_hose` the next scenario.
:func:`static_limit` is an upper limit: splits that may not depend on x.  On small networks
:func:`matrix_above` decides what lies between the two.

Whether any matrix of a hose fills a link beyond a limit: an integer program that is exact when it
is solved.

With prices y of the links, q_e = c_e y_e, sum of q_e = 1, the largest utilisation over all matrices
x of the hose is

    max sum_d w_d,   w_d <= sum over e in p of x_d q_e / c_e  for every live path p of demand d.

U_{d,e} stands for the product x_d q_e.  Multiplied by q_e, the limits of sums (R x)_i <= l_i read

    sum over d in i of U_{d,e} <= l_i q_e,

and these alone give the limit of splits fixed beforehand
(:func:`teal_ip.purchases.hose.static_limit`).  Some worst x is a vertex: with binary z_d (demand d
may be above 0) and v_i (limit i is kept with equality),

    U_{d,e} <= X_d z_d,   sum over d in i of U_{d,e} >= l_i q_e - l_i (1 - v_i),   sum z <= sum v,

where X_d is the most that demand d can be.  A choice of z and v that determines x makes U the
product; one that does not can only raise the value, so that what HiGHS proves holds in any case
(reformulation-linearisation; Sherali and Adams 1990).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import Between, solve_lp, solve_milp
from teal.solvers.pdhg import solve
from teal_ip.purchases.benders import ReportRound, Upgrade, buy, buy_modules
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.scenarios import Scenarios

MAX_PRODUCTS = (
    2000  # demands times links: of larger programs HiGHS seldom proves anything within a minute
)


def matrix_above(
    network: Problem, hose: Hose, least: float, seconds: float
) -> tuple[FloatArray | None, float]:
    """A matrix (D,) that may fill a link to ``least`` or more, or None, and what no matrix passes;
    infinite if unknown.

    Args:
        network: B = 1, with the capacities in force; its demand means nothing.
        hose: the matrices.
        least: utilisation below which no matrix is sought.
        seconds: time that HiGHS may take.
    """
    capacity, live = network.capacity[0].numpy(), network.path_mask[0].numpy()
    links, demands = np.flatnonzero(capacity > 0), np.flatnonzero(live.any(1))
    path = np.flatnonzero(live.reshape(-1))
    of_path = np.searchsorted(demands, path // network.paths.num_paths)
    incidence = network.ops.incidence(network.topology.num_links).tocsr()[links][:, path].tocoo()
    rows, limits = hose.rows.tocsc()[:, demands].tocsr(), hose.limits
    ends = hose.pairs[demands]
    most = np.minimum(limits[ends[:, 0]], limits[len(hose.out) + ends[:, 1]])
    width, count, each = len(links), len(demands), sp.eye_array(len(links))
    sizes = {"U": count * width, "q": width, "w": count, "z": count, "v": len(limits)}
    at = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))

    def block(**parts: sp.sparray) -> sp.csr_array:
        height = next(iter(parts.values())).shape[0]
        return sp.csr_array(
            sp.hstack(
                [parts.get(name, sp.csr_array((height, size))) for name, size in sizes.items()]
            )
        )

    per_path = sp.csr_array(
        (
            -1 / capacity[links][incidence.row],
            (incidence.col, of_path[incidence.col] * width + incidence.row),
        ),
        shape=(len(path), count * width),
    )
    select = sp.csr_array(
        (np.ones(len(path)), (np.arange(len(path)), of_path)), shape=(len(path), count)
    )
    sums, product = sp.kron(rows, each), sp.eye_array(count * width)
    by_link = {
        name: sp.kron(sp.csr_array(-values[:, None]), each)
        for name, values in (("limits", limits), ("most", most))
    }
    ones = np.ones((width, 1))
    constraints = [
        Between(block(U=per_path, w=select), high=0),
        Between(block(U=sums, q=by_link["limits"]), high=0),
        Between(
            block(U=sums, q=by_link["limits"], v=sp.kron(sp.diags_array(-limits), ones)),
            low=-np.repeat(limits, width),
        ),
        Between(block(U=product, q=by_link["most"]), high=0),
        Between(block(U=product, z=sp.kron(sp.diags_array(-most), ones)), high=0),
        Between(block(U=sp.kron(sp.eye_array(count), ones.T), z=sp.diags_array(-most)), high=0),
        Between(block(q=sp.csr_array(ones.T)), low=1, high=1),
        Between(
            block(z=sp.csr_array(np.ones((1, count))), v=sp.csr_array(-np.ones((1, len(limits))))),
            high=0,
        ),
        Between(block(w=sp.csr_array(np.ones((1, count)))), low=least),
    ]
    total = sum(sizes.values())
    cost, upper, integrality = np.zeros(total), np.full(total, np.inf), np.zeros(total)
    cost[at["w"] : at["z"]] = -1
    upper[at["q"] : at["w"]] = 1
    upper[at["z"] :] = integrality[at["z"] :] = 1
    result = solve_milp(
        cost, constraints, integrality, high=upper, seconds=max(0.1, seconds), relative_gap=1e-4
    )
    if result.is_infeasible:
        return None, least
    bound = max(least, -result.bound)
    if result.x is None:
        return None, bound
    matrix = np.zeros(len(hose.pairs))
    matrix[demands] = np.maximum(result.x[: count * width].reshape(count, width).sum(1), 0.0)
    return matrix, bound


_ENGINE_GAP = 3e-3  # certified, of the utilisations of matrices that are tried
_MAX_TURNS = 8  # turns of matrix and prices, at most, from each start
RANDOM_STARTS = (
    3  # random starts of the search for worst matrices, beside those from earlier prices
)
_LAST_STARTS = 12  # the same before a purchase is taken to serve the hose
_GAIN = 1e-3  # relative, of the largest utilisation, below which a search stops
_MAX_STATIC_ROWS = 200_000  # of the program of static splits; with them HiGHS takes minutes


@dataclasses.dataclass(frozen=True, eq=False)
class Hose:
    """Limits of what nodes send and receive.

    Attributes:
        pairs: (D, 2) source and target of each demand.
        out: (N,) Gbit/s that a node sends at most.
        into: (N,) Gbit/s that it receives at most.
    """

    pairs: IntArray
    out: FloatArray
    into: FloatArray

    def __post_init__(self) -> None:
        """Raise InputError for a limit that is negative or no number."""
        for name in ("out", "into"):
            limits = getattr(self, name)
            if not (np.isfinite(limits) & (limits >= 0)).all():
                raise InputError("hose", name, "finite limits of at least 0 Gbit/s", limits)

    @classmethod
    def of_history(cls, pairs: IntArray, matrices: FloatArray, num_nodes: int) -> Hose:
        """The peaks of what each node sent and received in matrices (M, D)."""
        out, into = (np.zeros((len(matrices), num_nodes)) for _ in range(2))
        for row, matrix in enumerate(matrices):
            out[row] = np.bincount(pairs[:, 0], matrix, num_nodes)
            into[row] = np.bincount(pairs[:, 1], matrix, num_nodes)
        return cls(pairs, out.max(0, initial=0.0), into.max(0, initial=0.0))

    @property
    def rows(self) -> sp.csr_array:
        """(2 N, D) the sums that ``limits`` limits."""
        demands, nodes = len(self.pairs), len(self.out)
        ends = np.concatenate([self.pairs[:, 0], nodes + self.pairs[:, 1]])
        columns = np.tile(np.arange(demands), 2)
        return sp.csr_array((np.ones(2 * demands), (ends, columns)), shape=(2 * nodes, demands))

    @property
    def limits(self) -> FloatArray:
        """(2 N,) what nodes send, then what they receive, at most."""
        return np.concatenate([self.out, self.into])

    def excess(self, matrix: FloatArray) -> float:
        """By how much a matrix (D,) passes a limit, relative to the largest one; at most 0
        inside.
        """
        return float((self.rows @ matrix - self.limits).max()) / max(
            float(self.limits.max(initial=0.0)), 1e-300
        )

    def dearest(self, weight: FloatArray) -> FloatArray:
        """(D,) the matrix of the hose with the largest weight (D,), by HiGHS.

        Raises:
            SolverError: HiGHS failed.
        """
        scale = max(float(np.abs(weight).max(initial=0.0)), 1e-300)
        return np.maximum(solve_lp(-weight / scale, (self.rows, self.limits)).solution("hose"), 0.0)


def pipe(matrices: FloatArray) -> FloatArray:
    """(D,) every pair's peak, all at once: what planning by pairs provides for."""
    return np.asarray(matrices.max(0, initial=0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class WorstMatrices:
    """The worst matrices that a search found, one for each failure.

    Attributes:
        matrix: (F, D) Gbit/s.
        utilisation: (F,) largest of a link under the best splits, certified from below.
        prices: (F, E) that certify it.
    """

    matrix: FloatArray
    utilisation: FloatArray
    prices: FloatArray


def worst_matrices(
    network: Problem,
    hose: Hose,
    *,
    starts: FloatArray | None = None,
    random_starts: int = RANDOM_STARTS,
    seed: int = 0,
    deadline: Deadline | None = None,
) -> WorstMatrices:
    """For each failure the matrix of the hose with the largest utilisation that alternation finds.

    Args:
        network: under max_link_utilisation; row f has the capacities of failure f, its demand means
            nothing.
        hose: the matrices.
        starts: (n, F, E) prices to start from, beside random ones.
        random_starts: number of these.
        seed: seed of the random starts.
        deadline: after which no further turn is made.
    """
    rng, end = np.random.default_rng(seed), deadline or Deadline(math.inf)
    failures, links = network.capacity.shape
    regular = network.capacity.numpy()
    random = rng.exponential(1.0, (random_starts, failures, links)) ** 2 / np.where(
        regular > 0, regular, np.inf
    )
    every = random if starts is None else np.concatenate([starts, random])
    best = WorstMatrices(
        np.zeros((failures, len(hose.pairs))), np.zeros(failures), np.zeros((failures, links))
    )
    for start in every:
        prices, before, rising = start.copy(), np.zeros(failures), np.arange(failures)
        for _ in range(_MAX_TURNS):
            part = dataclasses.replace(
                network, demand=network.demand[rising], capacity=network.capacity[rising]
            )
            matrix = np.stack([hose.dearest(row) for row in _path_cost(part, prices[rising])])
            matrix *= part.routable.numpy()
            result = solve(
                dataclasses.replace(part, demand=torch.from_numpy(matrix)),
                gap=_ENGINE_GAP,
                deadline=end.remaining,
            )
            bound = result.bound.numpy()
            prices[rising] = result.prices.clamp(min=0).numpy()
            better = bound > best.utilisation[rising]
            best.matrix[rising[better]] = matrix[better]
            best.utilisation[rising[better]] = bound[better]
            best.prices[rising[better]] = prices[rising[better]]
            still = bound > before[rising] * (1 + _GAIN)
            before[rising] = bound
            rising = rising[still]
            if not len(rising) or end.is_over:
                break
        if end.is_over:
            break
    return best


def _path_cost(network: Problem, prices: FloatArray) -> FloatArray:
    """(F, D) the cheapest live path of each demand under prices (F, E)."""
    one = torch.from_numpy(np.ascontiguousarray(prices)).to(network.demand)
    return np.asarray(network.cheapest_path_cost(network.ops.path_sum(one)).numpy())


@dataclasses.dataclass(frozen=True, eq=False)
class HosePlan:
    """A purchase for a hose.

    Attributes:
        upgrade: the purchase.
        cuts: cuts of the purchase.
        scenarios: the matrices that it was made for.
        worst: (F,) utilisation of the worst matrix found under each failure.
        limit: (F,) that no matrix passes, certified; infinite where it is not known.
    """

    upgrade: Upgrade
    cuts: Cuts
    scenarios: Scenarios
    worst: FloatArray
    limit: FloatArray


def buy_for_hose(
    start: Scenarios,
    live: BoolArray,
    hose: Hose,
    *,
    gap: float = 1e-2,
    target: float = 1e-2,
    sizes: Sequence[tuple[float, float]] = (),
    cuts: Cuts | None = None,
    exact_seconds: float = 30.0,
    deadline: Deadline | None = None,
    report: ReportRound | None = None,
    notify: Callable[[str], None] | None = None,
) -> HosePlan:
    """The cheapest purchase for all matrices of a hose, as far as the search for the worst ones
    reaches.

    Matrices that the purchase so far does not serve are added as scenarios, until the worst one
    found passes the limit by ``target`` at most; on small networks (demands times links at most
    2,000) until HiGHS proves that none does, if it can in time.  The bound is certified: a part of
    the hose's matrices has to fit in any case.

    Args:
        start: scenarios to begin with, such as one matrix under each failure.
        live: (F, E) whether links work, for each failure.
        hose: the matrices.
        gap: certified gap of the purchase for the scenarios.
        target: part by which the worst matrix may pass the limit.
        sizes: sizes of modules and their prices, with ``cuts`` of the purchase in any amounts; ()
            for any amounts.
        cuts: cuts that are known to hold; more are added to them.
        exact_seconds: time that the integer programs of one search may take.
        deadline: after which the purchase so far is returned.
        report: see :data:`ReportRound`.
        notify: called with a line after each search.
    """
    scenarios, end = start, deadline or Deadline(math.inf)
    begin, number = time.perf_counter(), 0
    while True:
        if sizes and cuts is not None:
            upgrade = buy_modules(scenarios, cuts, sizes, deadline=end, report=report)
        else:
            upgrade, cuts = buy(scenarios, gap=gap, deadline=end, report=report, cuts=cuts)
        network, most = _network(scenarios, live, upgrade.bought), scenarios.limit * (1 + target)
        earlier, limit = _last_prices(cuts, scenarios, live), np.full(len(live), np.inf)
        # From the prices of earlier cuts alone as long as they lead to something; random starts
        # have the last word.
        for starts in (0 if earlier is not None else RANDOM_STARTS, _LAST_STARTS):
            found = worst_matrices(
                network, hose, starts=earlier, random_starts=starts, seed=number, deadline=end
            )
            number += 1
            passing = found.utilisation > most
            if passing.any() or end.is_over:
                break
        if (
            not passing.any()
            and not end.is_over
            and network.topology.num_links * len(hose.pairs) <= MAX_PRODUCTS
        ):
            limit = _limits(network, hose, most, found, min(exact_seconds, end.left))
            passing = found.utilisation > most
        if notify is not None:
            notify(
                "worst demands found: the fullest link at "
                f"{100 * float(found.utilisation.max()):.2f}%, "
                f"{int(passing.sum())} of {len(live)} failures above the limit"
            )
        if not passing.any() or end.is_over:
            break
        scenarios = scenarios.and_more(found.matrix[passing], live[passing])
    upgrade = dataclasses.replace(
        upgrade, solve_s=time.perf_counter() - begin, reached=upgrade.reached and not passing.any()
    )
    return HosePlan(upgrade, cuts, scenarios, found.utilisation, limit)


def _limits(
    network: Problem, hose: Hose, most: float, found: WorstMatrices, seconds: float
) -> FloatArray:
    """(F,) what no matrix passes; infinite where HiGHS did not prove that it is at most ``most``.

    A worse matrix than those found is written into ``found``, and ends the search.
    """
    end, limit = Deadline.after(seconds), np.full(len(found.matrix), np.inf)
    for row in range(len(limit)):
        one = dataclasses.replace(
            network, demand=network.demand[row : row + 1], capacity=network.capacity[row : row + 1]
        )
        fixed = static_limit(one, hose)[0]
        if fixed <= most:
            limit[row] = fixed
            continue
        if end.is_over:
            continue
        matrix, bound = matrix_above(one, hose, most, end.left)
        if matrix is not None:
            again = solve(
                dataclasses.replace(one, demand=torch.from_numpy(matrix[None])),
                gap=_ENGINE_GAP / 10,
            )
            if float(again.bound[0]) > found.utilisation[row]:
                found.matrix[row], found.utilisation[row] = matrix, float(again.bound[0])
                found.prices[row] = again.prices[0].clamp(min=0).numpy()
            if found.utilisation[row] > most:
                break
        limit[row] = bound if bound <= most else np.inf
    return np.maximum(limit, found.utilisation)


def _network(scenarios: Scenarios, live: BoolArray, bought: FloatArray) -> Problem:
    """A row for each failure, with a purchase in force."""
    empty = np.zeros((len(live), scenarios.demand.shape[1]))
    return scenarios.some(empty, live).batch(np.arange(len(live)), bought)


def _last_prices(cuts: Cuts, scenarios: Scenarios, live: BoolArray) -> FloatArray | None:
    """(1, F, E) prices of the last cut of each failure; None if there are none."""
    if not len(cuts):
        return None
    prices = np.zeros(live.shape)
    for number, row in enumerate(cuts.row):
        same = (live == scenarios.live[row]).all(1)
        prices[same] = cuts.prices[number]
    return prices[None]


def static_limit(network: Problem, hose: Hose) -> tuple[float, FloatArray]:
    r"""An upper limit of the largest utilisation over all matrices of a hose, one failure: by
    splits fixed beforehand.

    One linear program, by duality of the transport problem of each link: least theta with splits w
    and a_e, b_e >= 0,

        sum_s out_s a_{e,s} + sum_t in_t b_{e,t} <= theta c_e,
        a_{e,s} + b_{e,t} >= sum over paths p of (s, t)
        through e of w_p,    for every link e and every pair (s, t) with a path through e.

    Args:
        network: B = 1, with the capacities of the failure.
        hose: the matrices.

    Returns:
        theta, and the splits (D, K).

    Raises:
        InputError: a program of more than 200,000 rows.
        SolverError: HiGHS failed.
    """
    paths, nodes = network.paths, len(hose.out)
    capacity = network.capacity[0].numpy()
    live = network.path_mask[0].numpy().reshape(-1)
    incidence = network.ops.incidence(network.topology.num_links).tocoo()
    kept = live[incidence.col]
    link, path = incidence.row[kept], incidence.col[kept]
    demand = path // paths.num_paths
    rows, row_of = np.unique(link * paths.num_demands + demand, return_inverse=True)
    if len(rows) > _MAX_STATIC_ROWS:
        raise InputError(
            "hose",
            "network",
            f"at most {_MAX_STATIC_ROWS:,} pairs of link and demand",
            f"{len(rows):,}",
        )
    used = np.flatnonzero(live)
    column = np.cumsum(live) - 1
    widths = len(used), len(capacity) * 2 * nodes
    row_link, row_demand = rows // paths.num_demands, rows % paths.num_demands
    source, target = hose.pairs[row_demand, 0], nodes + hose.pairs[row_demand, 1]
    number = np.arange(len(rows))
    cover = sp.csr_array(
        (
            np.concatenate([np.ones(len(path)), -np.ones(2 * len(rows))]),
            (
                np.concatenate([row_of, number, number]),
                np.concatenate(
                    [
                        column[path],
                        widths[0] + row_link * 2 * nodes + source,
                        widths[0] + row_link * 2 * nodes + target,
                    ]
                ),
            ),
        ),
        shape=(len(rows), sum(widths) + 1),
    )
    links = np.flatnonzero(capacity > 0)
    within = sp.csr_array(
        (
            np.concatenate([np.tile(hose.limits, len(links)), -capacity[links]]),
            (
                np.concatenate(
                    [np.repeat(np.arange(len(links)), 2 * nodes), np.arange(len(links))]
                ),
                np.concatenate(
                    [
                        widths[0] + (links[:, None] * 2 * nodes + np.arange(2 * nodes)).reshape(-1),
                        np.full(len(links), sum(widths)),
                    ]
                ),
            ),
        ),
        shape=(len(links), sum(widths) + 1),
    )
    has_path = np.unique(used // paths.num_paths)
    sums = sp.csr_array(
        (
            np.ones(len(used)),
            (np.searchsorted(has_path, used // paths.num_paths), np.arange(len(used))),
        ),
        shape=(len(has_path), sum(widths) + 1),
    )
    cost = np.zeros(sum(widths) + 1)
    cost[-1] = 1.0
    at_most = sp.vstack([cover, within]), np.zeros(len(rows) + len(links))
    result = solve_lp(cost, at_most, (sums, np.ones(len(has_path))))
    splits = np.zeros(paths.num_demands * paths.num_paths)
    splits[used] = result.solution("hose")[: len(used)]
    return result.value, splits.reshape(paths.num_demands, -1)
