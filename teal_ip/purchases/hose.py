"""Hose model (Duffield et al. 1999): demands known only by their sums at each node.

    H = {x >= 0 of the pairs:  sum over t of x_{s,t} <= out_s,   sum over s of x_{s,t} <= in_t}.

Finding the worst matrix of H for a network is not convex: the largest utilisation, max over x of
min over splits, is max over x, y of sum_d x_d dist_d(y), which is bilinear.
:func:`worst_matrices` alternates between x (a transport problem) and the link prices y (the dual
prices of the best splits for x), from several starts: a lower bound on the worst case, and in
:func:`expand_for_hose` the next scenario.  :func:`static_limit` is an upper bound, from splits that
do not depend on x.  On small networks :func:`matrix_above` closes the gap between the two: an
integer program, exact when solved, that decides whether any matrix of a hose fills a link beyond a
limit.

With prices y of the links, q_e = c_e y_e, sum of q_e = 1, the largest utilisation over all matrices
x of the hose is

    max sum_d w_d,   w_d <= sum over e in p of x_d q_e / c_e  for every live path p of demand d.

U_{d,e} stands for the product x_d q_e.  Row i of R sums the demands that one node sends, or
receives, and l_i is the node's limit.  Multiplied by q_e, the limits (R x)_i <= l_i read

    sum over d in i of U_{d,e} <= l_i q_e,

and these alone give the limit of fixed splits (:func:`static_limit`).  Some worst x is a vertex:
with binary z_d (demand d may be above 0) and v_i (limit i is tight),

    U_{d,e} <= X_d z_d,   sum over d in i of U_{d,e} >= l_i q_e - l_i (1 - v_i),   sum z <= sum v,

where X_d is the largest value of demand d.  A choice of z and v that determines x makes U the
product; any other choice can only raise the value, so HiGHS's bound holds in any case
(reformulation-linearisation technique; Sherali and Adams 1990).

Axis letters: F failures (row 0: no failure), D demands, K paths of a demand, C cables, E links, N
nodes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch

from teal.deprecated import with_old_attributes, with_old_names
from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.lp import LpResult, RangeConstraint, solve_lp, solve_milp
from teal.solvers.pipeline import solve
from teal_ip.purchases.benders import ReportRound, Upgrade, expand_capacity, expand_in_modules
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.scenarios import Scenarios

# Largest product of demands and links for which matrix_above is tried: above it HiGHS seldom
# proves anything within a minute.
MAX_PRODUCTS = 2000


def matrix_above(
    network: Problem, hose: Hose, min_utilisation: float, seconds: float
) -> tuple[FloatArray | None, float]:
    """Search for a matrix of a hose that fills some link to ``min_utilisation`` or more.

    The search is an integer program, exact if HiGHS solves it in time.

    Args:
        network: B = 1, with the current capacities; its demand is ignored.
        hose: limits of what each node sends and receives; the set of matrices within them.
        min_utilisation: the search is for matrices under which the largest link utilisation is at
            least this.
        seconds: time limit of HiGHS.

    Returns:
        the matrix (D,), None if HiGHS finds none, and an upper bound on the utilisation under any
        matrix of the hose, infinite if unknown.
    """
    program = _VertexProgram(network, hose)
    result = program.solve(min_utilisation, seconds)
    # Infeasible: no matrix reaches min_utilisation, which is an upper bound then.
    if result.is_infeasible:
        return None, min_utilisation
    # HiGHS minimises minus the utilisation, so its lower bound is minus the upper bound.
    bound = max(min_utilisation, -result.bound)
    if result.x is None:
        return None, bound
    return program.matrix(result.x), bound


class _VertexProgram:
    """Integer program of the worst vertex of a hose: the matrix with the largest utilisation.

    Variables, in this order, for D' demands with a live path, L links with capacity and 2 N limits:

        U_{d,e}  (D' L)   product of demand d and q_e
        q_e      (L)      capacity times price of link e; their sum is 1
        w_d      (D')     contribution of demand d to the utilisation
        z_d      (D')     binary: demand d may be above 0
        v_i      (2 N)    binary: limit i is tight

    Args:
        network: B = 1, with the current capacities; its demand is ignored.
        hose: limits of what each node sends and receives; the set of matrices within them.
    """

    def __init__(self, network: Problem, hose: Hose) -> None:
        """Set up the sparse matrices of the program, and the sizes of the blocks of variables.

        Variables: products U_{d,e} = x_d q_e (Gbit/s of demand d, capacity times price of link e),
        q_e, contributions w_d of demands to the utilisation, and binaries z_d (demand may be above
        0) and v_i (limit i is tight).
        """
        # Live links (L,), demands (D',) with a live path, and live paths with their demand.
        capacity = network.capacity[0].numpy()
        is_live_path = network.path_mask[0].numpy()
        links = np.flatnonzero(capacity > 0)
        self._demands = np.flatnonzero(is_live_path.any(1))
        self._num_pairs = len(hose.pairs)
        live_paths = np.flatnonzero(is_live_path.reshape(-1))
        self._path_demand = np.searchsorted(self._demands, live_paths // network.paths.num_paths)
        # Links and live paths that use them, as coordinates (row: link, column: path).
        self._incidence = (
            network.ops.incidence(network.topology.num_links).tocsr()[links][:, live_paths].tocoo()
        )
        self._capacity = capacity[links]
        # Rows (2 N, D') of the sums of demands, their limits (2 N,), and the largest value of each
        # demand (D',).
        self._hose_rows = hose.rows.tocsc()[:, self._demands].tocsr()
        self._limits = hose.limits
        ends = hose.pairs[self._demands]
        self._max_demand = np.minimum(
            self._limits[ends[:, 0]], self._limits[len(hose.out) + ends[:, 1]]
        )
        # Blocks of variables, and their first columns.
        num_demands = len(self._demands)
        self._block_sizes = {
            "U": num_demands * len(links),
            "q": len(links),
            "w": num_demands,
            "z": num_demands,
            "v": len(self._limits),
        }
        first_columns = np.cumsum([0, *self._block_sizes.values()])
        self._first_column = dict(zip(self._block_sizes, first_columns, strict=False))

    def solve(self, min_utilisation: float, seconds: float) -> LpResult:
        """Return HiGHS's result of the program: the largest utilisation sum_d w_d.

        Args:
            min_utilisation: smallest utilisation of a solution; the program is infeasible if no
                matrix reaches it.
            seconds: time limit of HiGHS.
        """
        # Objective (HiGHS minimises, so the cost of w is -1) and bounds of the variables: U and w
        # >= 0, 0 <= q <= 1, z and v binary.
        first_column = self._first_column
        num_variables = sum(self._block_sizes.values())
        cost = np.zeros(num_variables)
        upper_bounds = np.full(num_variables, np.inf)
        is_integer = np.zeros(num_variables)
        cost[first_column["w"] : first_column["z"]] = -1
        upper_bounds[first_column["q"] : first_column["w"]] = 1
        upper_bounds[first_column["z"] :] = 1
        is_integer[first_column["z"] :] = 1
        return solve_milp(
            cost,
            self._constraints(min_utilisation),
            is_integer,
            high=upper_bounds,
            seconds=max(0.1, seconds),
            relative_gap=1e-4,
        )

    def matrix(self, solution: FloatArray) -> FloatArray:
        """Return the matrix x (D,) of a solution, Gbit/s: x_d = sum over the links e of U_{d,e},
        since U_{d,e} = x_d q_e and the sum of q_e is 1.

        Args:
            solution: values of all variables.
        """
        num_demands = len(self._demands)
        num_links = len(self._capacity)
        matrix = np.zeros(self._num_pairs)
        matrix[self._demands] = np.maximum(
            solution[: num_demands * num_links].reshape(num_demands, num_links).sum(1), 0.0
        )
        return matrix

    def _constraint_rows(self, **blocks: sp.sparray) -> sp.csr_array:
        """Return constraint rows over all variables, 0 outside the given blocks.

        Args:
            blocks: coefficients (rows, size of the block) by name of the block of variables.
        """
        num_rows = next(iter(blocks.values())).shape[0]
        return sp.csr_array(
            sp.hstack(
                [
                    blocks.get(name, sp.csr_array((num_rows, size)))
                    for name, size in self._block_sizes.items()
                ]
            )
        )

    def _constraints(self, min_utilisation: float) -> list[RangeConstraint]:
        """Return the constraints of the integer program.

        With U_{d,e} = x_d q_e (Gbit/s of demand d times capacity times price of link e), w_d the
        contribution of demand d to the utilisation, X_d the largest value of demand d, l_i the
        limits of sums, and z_d and v_i binary:

            w_d - sum over e in p of U_{d,e} / c_e <= 0    for each live path p of demand d
            sum over d in i of U_{d,e} <= l_i q_e          for each limit i, equality if v_i = 1
            U_{d,e} <= X_d q_e,  U_{d,e} <= X_d z_d,  sum over e of U_{d,e} <= X_d z_d
            sum of q_e = 1,  sum of z <= sum of v,  sum of w >= min_utilisation

        Args:
            min_utilisation: smallest utilisation of a solution.
        """
        limits = self._limits
        max_demand = self._max_demand
        num_links = len(self._capacity)
        num_demands = len(self._demands)
        link_identity = sp.eye_array(num_links)
        link_ones = np.ones((num_links, 1))
        # Coefficients of U are ordered demand by demand, then link by link: Kronecker products.
        # Those of q have a minus sign: -l_i q_e and -X_d q_e.
        limit_sums = sp.kron(self._hose_rows, link_identity)
        product_identity = sp.eye_array(num_demands * num_links)
        q_times_limits = sp.kron(sp.csr_array(-limits[:, None]), link_identity)
        q_times_max_demand = sp.kron(sp.csr_array(-max_demand[:, None]), link_identity)
        return [
            # Contribution of each demand: at most that of each of its live paths.
            self._path_constraint(),
            # Sums of demands: sum U - l q <= 0, and sum U - l q - l v >= -l, so that they are equal
            # to the limits if v = 1.
            RangeConstraint(self._constraint_rows(U=limit_sums, q=q_times_limits), high=0),
            RangeConstraint(
                self._constraint_rows(
                    U=limit_sums, q=q_times_limits, v=sp.kron(sp.diags_array(-limits), link_ones)
                ),
                low=-np.repeat(limits, num_links),
            ),
            # Each demand is at most its largest value, and 0 if z = 0; the last rows are sums
            # over the links.
            RangeConstraint(
                self._constraint_rows(U=product_identity, q=q_times_max_demand), high=0
            ),
            RangeConstraint(
                self._constraint_rows(
                    U=product_identity, z=sp.kron(sp.diags_array(-max_demand), link_ones)
                ),
                high=0,
            ),
            RangeConstraint(
                self._constraint_rows(
                    U=sp.kron(sp.eye_array(num_demands), link_ones.T), z=sp.diags_array(-max_demand)
                ),
                high=0,
            ),
            # sum of q = 1.
            RangeConstraint(self._constraint_rows(q=sp.csr_array(link_ones.T)), low=1, high=1),
            # At a vertex there are at most as many positive demands as tight limits.
            RangeConstraint(
                self._constraint_rows(
                    z=sp.csr_array(np.ones((1, num_demands))),
                    v=sp.csr_array(-np.ones((1, len(limits)))),
                ),
                high=0,
            ),
            # The utilisation is at least min_utilisation.
            RangeConstraint(
                self._constraint_rows(w=sp.csr_array(np.ones((1, num_demands)))),
                low=min_utilisation,
            ),
        ]

    def _path_constraint(self) -> RangeConstraint:
        """Return the rows w_d - sum over the links e of path p of U_{d,e} / c_e <= 0, one for each
        live path p of demand d.
        """
        num_links = len(self._capacity)
        num_demands = len(self._demands)
        num_paths = len(self._path_demand)
        link = self._incidence.row
        path = self._incidence.col
        # Coefficient -1 / c_e of U_{d,e} for each link e of path p of demand d.
        path_product_rows = sp.csr_array(
            (-1 / self._capacity[link], (path, self._path_demand[path] * num_links + link)),
            shape=(num_paths, num_demands * num_links),
        )
        path_demand_rows = sp.csr_array(
            (np.ones(num_paths), (np.arange(num_paths), self._path_demand)),
            shape=(num_paths, num_demands),
        )
        return RangeConstraint(
            self._constraint_rows(U=path_product_rows, w=path_demand_rows), high=0
        )


# Certified gap of the utilisations of candidate matrices.
_SOLVER_GAP = 3e-3
# Maximum number of alternations between matrix and prices from each start.
_MAX_ALTERNATIONS = 8
# Number of random starts of the search for worst matrices, besides those from earlier prices.
RANDOM_STARTS = 3
# Number of random starts of the last search, before an expansion is accepted for the hose.
_LAST_STARTS = 12
# Relative gain of the largest utilisation below which a search stops.
_MIN_GAIN = 1e-3
# Maximum number of rows of the program of static splits, for which HiGHS takes minutes.
_MAX_STATIC_ROWS = 200_000


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class Hose:
    """Limits on the ingress and egress traffic of nodes.

    Attributes:
        pairs: (D, 2) source and target of each demand.
        out: (N,) largest Gbit/s that a node sends.
        into: (N,) largest Gbit/s that a node receives.
    """

    pairs: IntArray
    out: FloatArray
    into: FloatArray

    def __post_init__(self) -> None:
        """Raise InputError for a limit that is negative or not finite."""
        for name in ("out", "into"):
            limits = getattr(self, name)
            is_invalid = ~(np.isfinite(limits) & (limits >= 0))
            if is_invalid.any():
                node = int(is_invalid.argmax())
                raise InputError(
                    "hose", f"{name} of node {node}", "a finite limit >= 0 Gbit/s", limits[node]
                )

    @classmethod
    def of_history(cls, pairs: IntArray, matrices: FloatArray, num_nodes: int) -> Hose:
        """Return the hose of the largest traffic that each node sent and received in any matrix.

        Args:
            pairs: (D, 2) source and target of each demand.
            matrices: (M, D) Gbit/s.
            num_nodes: number of nodes, N.
        """
        # Gbit/s (M, N) that each node sends and receives in each matrix.
        out, into = (np.zeros((len(matrices), num_nodes)) for _ in range(2))
        for row, matrix in enumerate(matrices):
            out[row] = np.bincount(pairs[:, 0], matrix, num_nodes)
            into[row] = np.bincount(pairs[:, 1], matrix, num_nodes)
        return cls(pairs, out.max(0, initial=0.0), into.max(0, initial=0.0))

    @property
    def rows(self) -> sp.csr_array:
        """Sparse matrix R (2 N, D) of zeros and ones: R x are the sums of a matrix x (D,) that each
        node sends, then the sums that each node receives.
        """
        demands = len(self.pairs)
        nodes = len(self.out)
        row_index = np.concatenate([self.pairs[:, 0], nodes + self.pairs[:, 1]])
        columns = np.tile(np.arange(demands), 2)
        return sp.csr_array(
            (np.ones(2 * demands), (row_index, columns)), shape=(2 * nodes, demands)
        )

    @property
    def limits(self) -> FloatArray:
        """Limits (2 N,) of the traffic that nodes send, then of what they receive, Gbit/s."""
        return np.concatenate([self.out, self.into])

    def excess(self, matrix: FloatArray) -> float:
        """Return the largest violation of a limit by a matrix (D,), relative to the largest limit.

        It is at most 0 for a feasible matrix.
        """
        return float((self.rows @ matrix - self.limits).max()) / max(
            float(self.limits.max(initial=0.0)), 1e-300
        )

    def max_weight_matrix(self, weight: FloatArray) -> FloatArray:
        """Return the matrix (D,) of the hose with the largest weighted sum of demands, by a linear
        program.

        Args:
            weight: (D,) value of a Gbit/s of each demand, such as the price of its cheapest path.

        Raises:
            SolverError: HiGHS failed.
        """
        # HiGHS minimises, so the weights are negated; they are scaled to at most 1 in size.
        scale = max(float(np.abs(weight).max(initial=0.0)), 1e-300)
        return np.maximum(solve_lp(-weight / scale, (self.rows, self.limits)).solution("hose"), 0.0)


def pipe(matrices: FloatArray) -> FloatArray:
    """Return the largest value of each demand (D,) over matrices (M, D): the pipe model."""
    return np.asarray(matrices.max(0, initial=0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class WorstMatrices:
    """Worst matrices that a search found, one for each failure.

    Attributes:
        matrix: (F, D) Gbit/s.
        utilisation: (F,) largest utilisation under the best splits: certified lower bound.
        prices: (F, E) dual prices of links that certify it.
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
    """Search for the matrix of the hose with the largest utilisation, for each failure.

    From every start, alternate between the matrix that costs most at the link prices, and the
    prices of that matrix's best splits.  The result is a lower bound on the worst case.

    Args:
        network: under max_link_utilisation; row f has the capacities of failure f, its demand is
            ignored.
        hose: limits of what each node sends and receives; the set of matrices within them.
        starts: (n, F, E) starting prices of links, besides random ones; None for random ones alone.
        random_starts: number of random starts.
        seed: seed of the random starts.
        deadline: time limit, after which no further alternation begins.
    """
    # Starting prices (n, F, E): the given ones, then random ones of wide spread, scaled by 1 / c.
    rng = np.random.default_rng(seed)
    time_limit = deadline or Deadline(math.inf)
    num_failures, num_links = network.capacity.shape
    capacity = network.capacity.numpy()
    random_prices = rng.exponential(1.0, (random_starts, num_failures, num_links)) ** 2 / np.where(
        capacity > 0, capacity, np.inf
    )
    all_start_prices = random_prices if starts is None else np.concatenate([starts, random_prices])
    worst_case = WorstMatrices(
        np.zeros((num_failures, len(hose.pairs))),
        np.zeros(num_failures),
        np.zeros((num_failures, num_links)),
    )
    for start_prices in all_start_prices:
        _alternate(network, hose, start_prices, worst_case, time_limit)
        if time_limit.is_over:
            break
    return worst_case


def _alternate(
    network: Problem,
    hose: Hose,
    start_prices: FloatArray,
    worst_case: WorstMatrices,
    deadline: Deadline,
) -> None:
    """Alternate between matrix and prices, for the failures whose utilisation still rises.

        x <- the matrix of the hose with the largest sum_d x_d dist_d(y)     (linear program)
        y <- the dual prices of the best splits for x                        (solver)

    Args:
        network: under max_link_utilisation; row f has the capacities of failure f.
        hose: limits of what each node sends and receives; the set of matrices within them.
        start_prices: (F, E) starting prices of links.
        worst_case: worst matrices so far, updated in place.
        deadline: time limit, after which no further alternation begins.
    """
    prices = start_prices.copy()
    # Utilisation (F,) of the previous alternation, and the failures for which it still rises.
    previous_utilisation = np.zeros(len(prices))
    rising_failures = np.arange(len(prices))
    for _ in range(_MAX_ALTERNATIONS):
        rising_network = dataclasses.replace(
            network,
            demand=network.demand[rising_failures],
            capacity=network.capacity[rising_failures],
        )
        # Matrix of the largest cost at these prices.
        matrix = np.stack(
            [
                hose.max_weight_matrix(row)
                for row in _path_cost(rising_network, prices[rising_failures])
            ]
        )
        matrix *= rising_network.routable.numpy()
        # Prices of the best splits of that matrix.
        solution = solve(
            dataclasses.replace(rising_network, demand=torch.from_numpy(matrix)),
            gap=_SOLVER_GAP,
            deadline=deadline.remaining,
        )
        utilisation = solution.bound.numpy()
        prices[rising_failures] = solution.prices.clamp(min=0).numpy()
        # Worst matrices so far; the certified bound is their utilisation.
        is_better = utilisation > worst_case.utilisation[rising_failures]
        worst_case.matrix[rising_failures[is_better]] = matrix[is_better]
        worst_case.utilisation[rising_failures[is_better]] = utilisation[is_better]
        worst_case.prices[rising_failures[is_better]] = prices[rising_failures[is_better]]
        # Failures whose utilisation still rises.
        is_rising = utilisation > previous_utilisation[rising_failures] * (1 + _MIN_GAIN)
        previous_utilisation[rising_failures] = utilisation
        rising_failures = rising_failures[is_rising]
        if not len(rising_failures) or deadline.is_over:
            break


def _path_cost(network: Problem, prices: FloatArray) -> FloatArray:
    """Return the cost (F, D) of the cheapest live path of each demand under link prices.

    Args:
        network: row f has the capacities of failure f.
        prices: (F, E) link prices.
    """
    price_tensor = torch.from_numpy(np.ascontiguousarray(prices)).to(network.demand)
    return np.asarray(network.cheapest_path_cost(network.ops.path_sum(price_tensor)).numpy())


@dataclasses.dataclass(frozen=True, eq=False)
class HosePlan:
    """Capacity expansion for a hose.

    Attributes:
        upgrade: the expansion.
        cuts: Benders cuts that prove its bound.
        scenarios: matrices under failures that it was planned for.
        worst: (F,) utilisation of the worst matrix found under each failure.
        limit: (F,) certified upper bound on the utilisation under any matrix; infinite if unknown.
    """

    upgrade: Upgrade
    cuts: Cuts
    scenarios: Scenarios
    worst: FloatArray
    limit: FloatArray


def expand_for_hose(
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
    """Find the cheapest expansion for all matrices of a hose (scenario generation).

    A round expands for the scenarios so far, searches for the worst matrices of the hose on the
    expanded network, and adds those that exceed the utilisation limit as scenarios.  It ends when
    the worst matrix found exceeds the limit by at most ``target``.  If demands times links are at
    most 2,000, HiGHS then tries to prove that no matrix exceeds it, and may find one that does.
    The bound on the cost is certified, since the scenarios are a subset of the hose.

    Args:
        start: initial scenarios, such as one matrix under each failure.
        live: (F, E) whether links are up, for each failure.
        hose: limits of what each node sends and receives; the set of matrices within them.
        gap: certified gap of the expansion for the scenarios.
        target: relative excess over the utilisation limit that is allowed for the worst matrix.
        sizes: Gbit/s and price of each module size, which need the ``cuts`` of the expansion in any
            amounts; () for any amounts.
        cuts: valid Benders cuts, extended in place; None for none.
        exact_seconds: time limit of the integer programs of one search.
        deadline: time limit, after which the expansion so far is returned.
        report: called after each round of an expansion with its index, cost and bound.
        notify: called after each search with a sentence on the worst matrices found.
    """
    scenarios = start
    time_limit = deadline or Deadline(math.inf)
    begin = time.perf_counter()
    num_searches = 0
    while True:
        # Expansion for the scenarios so far.
        if sizes and cuts is not None:
            upgrade = expand_in_modules(scenarios, cuts, sizes, deadline=time_limit, report=report)
        else:
            upgrade, cuts = expand_capacity(
                scenarios, gap=gap, deadline=time_limit, report=report, cuts=cuts
            )
        # Worst matrices of the expanded network, from the prices of earlier cuts.
        network = _expanded_network(scenarios, live, upgrade.bought)
        allowed_utilisation = scenarios.max_utilisation * (1 + target)
        earlier_prices = _last_prices(cuts, scenarios, live)
        upper_bound = np.full(len(live), np.inf)
        worst_case, num_searches = _search_above(
            network, hose, earlier_prices, allowed_utilisation, num_searches, time_limit
        )
        exceeds_limit = worst_case.utilisation > allowed_utilisation
        # Small networks: prove that no matrix exceeds the limit, or find one, by integer programs.
        if (
            not exceeds_limit.any()
            and not time_limit.is_over
            and network.topology.num_links * len(hose.pairs) <= MAX_PRODUCTS
        ):
            # A worse matrix found here replaces that of its failure.
            upper_bound = _prove_bounds(
                network,
                hose,
                allowed_utilisation,
                worst_case,
                min(exact_seconds, time_limit.remaining_s),
            )
            exceeds_limit = worst_case.utilisation > allowed_utilisation
        # Report the largest utilisation, and add the matrices that exceed the limit.
        if notify is not None:
            notify(
                "worst demands found: largest link utilisation "
                f"{100 * float(worst_case.utilisation.max()):.2f}%, "
                f"above the limit under {int(exceeds_limit.sum())} of {len(live)} failures"
            )
        if not exceeds_limit.any() or time_limit.is_over:
            break
        scenarios = scenarios.with_scenarios(worst_case.matrix[exceeds_limit], live[exceeds_limit])
    upgrade = dataclasses.replace(
        upgrade,
        solve_s=time.perf_counter() - begin,
        reached=upgrade.reached and not exceeds_limit.any(),
    )
    return HosePlan(upgrade, cuts, scenarios, worst_case.utilisation, upper_bound)


def _search_above(
    network: Problem,
    hose: Hose,
    earlier_prices: FloatArray | None,
    max_utilisation: float,
    num_searches: int,
    deadline: Deadline,
) -> tuple[WorstMatrices, int]:
    """Search for matrices above the limit: from earlier prices, then from more random starts if no
    matrix exceeds it.

    Args:
        network: row f has the capacities of failure f.
        hose: limits of what each node sends and receives; the set of matrices within them.
        earlier_prices: (1, F, E) starting prices of links; None for random starts alone.
        max_utilisation: utilisation limit that a matrix must exceed.
        num_searches: number of earlier searches, the seed of the next one.
        deadline: time limit.

    Returns:
        the worst matrices, and the number of searches so far.
    """
    # The first search has random starts only if there are no earlier prices; the second one, if the
    # first finds no matrix above the limit, has _LAST_STARTS of them.
    for random_starts in (0 if earlier_prices is not None else RANDOM_STARTS, _LAST_STARTS):
        worst_case = worst_matrices(
            network,
            hose,
            starts=earlier_prices,
            random_starts=random_starts,
            seed=num_searches,
            deadline=deadline,
        )
        num_searches += 1
        if (worst_case.utilisation > max_utilisation).any() or deadline.is_over:
            break
    return worst_case, num_searches


def _prove_bounds(
    network: Problem, hose: Hose, max_utilisation: float, worst_case: WorstMatrices, seconds: float
) -> FloatArray:
    """Return upper bounds (F,) on the utilisation under any matrix of the hose.

    A bound is infinite unless it is proven to be at most ``max_utilisation``.  Each failure is
    tried with static splits, then with the integer program.  A worse matrix than those found is
    written into ``worst_case``, and ends the search if it exceeds the limit.

    Args:
        network: row f has the capacities of failure f.
        hose: limits of what each node sends and receives; the set of matrices within them.
        max_utilisation: utilisation limit.
        worst_case: worst matrices so far, updated in place.
        seconds: time limit of all integer programs.
    """
    deadline = Deadline.after(seconds)
    bounds = np.full(len(worst_case.matrix), np.inf)
    for failure_index in range(len(bounds)):
        failure_network = dataclasses.replace(
            network,
            demand=network.demand[failure_index : failure_index + 1],
            capacity=network.capacity[failure_index : failure_index + 1],
        )
        # Bound by static splits.
        static_bound = static_limit(failure_network, hose)[0]
        if static_bound <= max_utilisation:
            bounds[failure_index] = static_bound
            continue
        if deadline.is_over:
            continue
        # Bound by the integer program, or a worse matrix.
        matrix, bound = matrix_above(failure_network, hose, max_utilisation, deadline.remaining_s)
        if matrix is not None:
            # Certify the utilisation of this matrix to a tenth of the gap of the search.
            solution = solve(
                dataclasses.replace(failure_network, demand=torch.from_numpy(matrix[None])),
                gap=_SOLVER_GAP / 10,
            )
            if float(solution.bound[0]) > worst_case.utilisation[failure_index]:
                worst_case.matrix[failure_index] = matrix
                worst_case.utilisation[failure_index] = float(solution.bound[0])
                worst_case.prices[failure_index] = solution.prices[0].clamp(min=0).numpy()
            if worst_case.utilisation[failure_index] > max_utilisation:
                break
        bounds[failure_index] = bound if bound <= max_utilisation else np.inf
    return np.maximum(bounds, worst_case.utilisation)


def _expanded_network(scenarios: Scenarios, live: BoolArray, added_capacity: FloatArray) -> Problem:
    """Return the network with an expansion, a row for each failure, without demand.

    Args:
        scenarios: network, cables and limit.
        live: (F, E) whether links are up, for each failure.
        added_capacity: (C,) Gbit/s added to each cable.
    """
    no_demand = np.zeros((len(live), scenarios.demand.shape[1]))
    return scenarios.select(no_demand, live).batch(np.arange(len(live)), added_capacity)


def _last_prices(cuts: Cuts, scenarios: Scenarios, live: BoolArray) -> FloatArray | None:
    """Return the link prices (1, F, E) of the last cut of each failure, 0 for a failure without a
    cut; None if there are no cuts.

    Args:
        cuts: Benders cuts.
        scenarios: scenarios of the cuts.
        live: (F, E) whether links are up, for each failure.
    """
    if not len(cuts):
        return None
    prices = np.zeros(live.shape)
    for cut_index, scenario_index in enumerate(cuts.row):
        is_same_failure = (live == scenarios.live[scenario_index]).all(1)
        prices[is_same_failure] = cuts.prices[cut_index]
    return prices[None]


def static_limit(network: Problem, hose: Hose) -> tuple[float, FloatArray]:
    """Upper bound on the largest utilisation over all matrices of a hose, for one failure, from
    splits that do not depend on the matrix.

    By duality of the transport problem of each link, one linear program gives the bound: the least
    theta over splits w and duals a_e, b_e >= 0 of the limits, s.t.

        sum_s out_s a_{e,s} + sum_t in_t b_{e,t} <= theta c_e
        a_{e,s} + b_{e,t} >= sum over paths p of (s, t) through e of w_p

    for every link e of capacity c_e and, in the second row, every pair (s, t).  Node s sends at
    most out_s Gbit/s, and node t receives at most in_t.

    Args:
        network: B = 1, with the capacities of the failure.
        hose: limits of what each node sends and receives; the set of matrices within them.

    Returns:
        theta, and the splits (D, K).

    Raises:
        InputError: a program of more than 200,000 rows.
        SolverError: HiGHS failed.
    """
    program = _StaticProgram(network, hose)
    num_paths = len(program.live_paths)
    # Minimise theta, the last variable.
    cost = np.zeros(program.num_variables)
    cost[-1] = 1.0
    # All these rows are <= 0; the splits of each demand sum to 1.
    cover_rows = program.cover_rows()
    capacity_rows = program.capacity_rows()
    num_rows = cover_rows.shape[0] + capacity_rows.shape[0]
    split_sums = program.split_sums()
    result = solve_lp(
        cost,
        (sp.vstack([cover_rows, capacity_rows]), np.zeros(num_rows)),
        (split_sums, np.ones(split_sums.shape[0])),
    )
    # Splits of the live paths; the others are 0.
    paths = network.paths
    splits = np.zeros(paths.num_demands * paths.num_paths)
    splits[program.live_paths] = result.solution("hose")[:num_paths]
    return result.value, splits.reshape(paths.num_demands, -1)


class _StaticProgram:
    """Constraint rows of the linear program of :func:`static_limit`.

    The variables are, in this order: the splits of the P live paths; the duals a and b of the
    limits, 2 N for each of E links; and theta.

    Args:
        network: B = 1, with the capacities of the failure.
        hose: limits of what each node sends and receives; the set of matrices within them.

    Raises:
        InputError: more than 200,000 pairs of a link and a demand with a path over it.
    """

    def __init__(self, network: Problem, hose: Hose) -> None:
        """Set up the sparse incidences of the program, and the indices of its variables.

        Variables: splits of the live paths, then duals a and b of the hose limits for each link,
        then theta, the largest utilisation.
        """
        self._paths = network.paths
        self._hose = hose
        self._capacity = network.capacity[0].numpy()
        is_live_path = network.path_mask[0].numpy().reshape(-1)
        self.live_paths = np.flatnonzero(is_live_path)
        # Index of each live path among the live ones, which is that of its variable.
        self._split_column = np.cumsum(is_live_path) - 1
        # Incidences: a live path and one of its links.  There is one covering row for each pair of
        # a link and a demand with a path over it, stored as link * D + demand in
        # ``_link_demand_codes``; ``_cover_row`` is the row of each incidence, and
        # ``_incidence_path`` its path.
        incidence = network.ops.incidence(network.topology.num_links).tocoo()
        is_on_live_path = is_live_path[incidence.col]
        self._incidence_path = incidence.col[is_on_live_path]
        demand = self._incidence_path // self._paths.num_paths
        link = incidence.row[is_on_live_path]
        self._link_demand_codes, self._cover_row = np.unique(
            link * self._paths.num_demands + demand, return_inverse=True
        )
        if len(self._link_demand_codes) > _MAX_STATIC_ROWS:
            raise InputError(
                "hose",
                "network",
                f"at most {_MAX_STATIC_ROWS:,} pairs of a link and a demand",
                f"{len(self._link_demand_codes):,}",
            )
        # First variable of a and b, and that of theta.
        self._num_limits = 2 * len(hose.out)
        self._first_dual_column = len(self.live_paths)
        self._theta_column = self._first_dual_column + len(self._capacity) * self._num_limits
        self.num_variables = self._theta_column + 1

    def cover_rows(self) -> sp.csr_array:
        """Return the rows (sum of splits) - a_{e,s} - b_{e,t} <= 0, one for each pair of a link e
        and a demand from s to t with a live path over it.

        The sum has the splits of all live paths of the demand over the link; a and b are the duals
        of the hose limits.
        """
        num_rows = len(self._link_demand_codes)
        row_index = np.arange(num_rows)
        # Link e and demand (s, t) of each row, and the indices of s and t among the 2 N limits.
        row_link = self._link_demand_codes // self._paths.num_demands
        row_demand = self._link_demand_codes % self._paths.num_demands
        source_limit = self._hose.pairs[row_demand, 0]
        target_limit = len(self._hose.out) + self._hose.pairs[row_demand, 1]
        # Column of the first dual of each row's link.
        first_dual = self._first_dual_column + row_link * self._num_limits
        coefficients = np.concatenate([np.ones(len(self._incidence_path)), -np.ones(2 * num_rows)])
        rows = np.concatenate([self._cover_row, row_index, row_index])
        columns = np.concatenate(
            [
                self._split_column[self._incidence_path],
                first_dual + source_limit,
                first_dual + target_limit,
            ]
        )
        return sp.csr_array((coefficients, (rows, columns)), shape=(num_rows, self.num_variables))

    def capacity_rows(self) -> sp.csr_array:
        """Return the rows of sum_s out_s a_{e,s} + sum_t in_t b_{e,t} - theta c_e <= 0, one for
        each link e of capacity c_e > 0.

        out_s and in_t are the Gbit/s that nodes s and t may send and receive, a and b the duals of
        these limits for each link, and theta is the largest utilisation.
        """
        links = np.flatnonzero(self._capacity > 0)
        row_index = np.arange(len(links))
        # Columns (L, 2 N) of the duals of each link, counted from the first dual.
        dual_offset = links[:, None] * self._num_limits + np.arange(self._num_limits)
        coefficients = np.concatenate(
            [np.tile(self._hose.limits, len(links)), -self._capacity[links]]
        )
        rows = np.concatenate([np.repeat(row_index, self._num_limits), row_index])
        columns = np.concatenate(
            [
                self._first_dual_column + dual_offset.reshape(-1),
                np.full(len(links), self._theta_column),
            ]
        )
        return sp.csr_array((coefficients, (rows, columns)), shape=(len(links), self.num_variables))

    def split_sums(self) -> sp.csr_array:
        """Return the rows that sum the splits of the live paths of a demand, one for each demand
        with a live path.
        """
        path_demand = self.live_paths // self._paths.num_paths
        demands = np.unique(path_demand)
        num_paths = len(self.live_paths)
        return sp.csr_array(
            (np.ones(num_paths), (np.searchsorted(demands, path_demand), np.arange(num_paths))),
            shape=(len(demands), self.num_variables),
        )


__getattr__ = with_old_names(__name__, globals())
