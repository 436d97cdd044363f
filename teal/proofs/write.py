r"""Write the proof of an allocation, with network and matrix, as files that
:mod:`teal.proofs.check` checks.

Flows x[d, k] of a matrix become integer multiples of 2^-60 Gbit/s.  They are multiplied with
1 - 2^-s first, where s is 40. Rounded sums, and the difference between a number and its shortest
decimal, then stay below capacities and rates.  Where all demand must be carried, what rounding left
out goes to the largest path.  Prices are rounded down to multiples of 2^-60, since any prices prove
a bound.  Claims leave twice as much room as the flows: they cost 2e-12 of the value.  If the
checker refuses the files, s is lowered; an error says where no s is enough.

Multipliers that prove the cost of a protected flow at given prices, for every demand at once.

A protected flow of 1 Gbit/s reserves a[k] on the paths so that it survives every group: the
least cost is

    min sum_k price[k] a[k]   s.t.   sum over k that survive g of a[k] >= 1 for every g
    =  max sum_g m[g]         s.t.   sum over g that k survives of m[g] <= price[k],  m >= 0,

by linear duality; the maximum over the groups is reached on the smallest sets of paths that groups
leave.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix
from torch import Tensor

from teal.errors import InputError, SolverError
from teal.formats.allocations import links_along
from teal.network import PathSet
from teal.network.subset import joined, of_demands
from teal.objectives import Objective, ObjectiveName, Rules
from teal.pathops import make_path_ops
from teal.problem import Allocation, Problem
from teal.problem.bounds import PRICE_SCALES, all_paths_bound, finite_prices, usable_prices
from teal.problem.fair_levels import growth_from
from teal.problem.feasibility import TOLERANCE
from teal.problem.protection import Protection, chosen_columns, failed_paths
from teal.proofs import check
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray
from teal.runtime.lp import solve_lp

# Scale of prices in the linear program, whose tolerance is then 6e-12 of a price of 1.
_SCALE = 2.0**14
# Share by which multipliers are lowered, so that their rounded sums stay within prices.
_ROUNDING = 2.0**-40


def group_multipliers(
    problem: Problem, protection: Protection, prices: FloatArray, bits: int
) -> tuple[list[list[str]], FloatArray]:
    """Words ``@GROUP:MULTIPLIER`` of a proof, for each demand, and (D,) the sums of its
    multipliers.

    Args:
        problem: B = 1.
        protection: groups, and the smallest sets of paths that they leave.
        prices: (E,) prices of the links.
        bits: multipliers are integer multiples of 2^-bits.

    Raises:
        SolverError: the linear program was not solved.
    """
    # Prices of the paths, and the paths that survive the group of each set.
    live = problem.path_mask[0].cpu().numpy()
    rounded = torch.from_numpy(np.floor(prices * 2.0**bits) / 2.0**bits)
    price = problem.ops.path_sum(rounded[None].to(problem.capacity))[0].cpu().numpy()
    names, survives = _groups_of_sets(problem, protection)
    survives &= live[:, None]
    d, m = np.nonzero(survives.any(-1))
    # Maximise the sum of the multipliers of each demand, within the prices of its live paths.
    matrix = _survival_matrix(live, survives)
    solved = np.zeros(0)
    if len(d):
        solved = solve_lp(-np.ones(len(d)), (matrix, _SCALE * price[live])).solution(
            "the multipliers of the groups"
        )
    # The solver keeps its rows to 1e-7: each demand's multipliers are scaled until its paths'
    # prices hold exactly.
    multiplier = np.maximum(solved, 0) / _SCALE
    multiplier[(matrix.T @ (price[live] <= 0)) > 0] = 0
    paid = np.zeros(live.shape)
    paid[live] = matrix @ multiplier
    factor = np.where(paid > price, price / np.maximum(paid, 1e-300), 1).min(1)[d]
    # Round the multipliers down, and write them as words.
    words: list[list[str]] = [[] for _ in live]
    sums = np.zeros(len(live))
    for index in np.flatnonzero(multiplier > 0).tolist():
        units = int(multiplier[index] * factor[index] * (1 - _ROUNDING) * 2.0**bits)
        words[d[index]].append(f"@{names[d[index], m[index]]}:{units}")
        sums[d[index]] += units / 2.0**bits
    # A group that leaves nothing: no price limits its multiplier, and one of the demand's worth
    # proves a promise of 0.
    demand_value = problem.demand_value.cpu().numpy()
    for lost in np.flatnonzero(~survives.any(-1).all(-1)).tolist():
        name = names[lost, np.flatnonzero(~survives[lost].any(-1))[0]]
        words[lost] = [f"@{name}:{int((demand_value[lost] + 1) * 2.0**bits)}"]
        sums[lost] = demand_value[lost] + 1
    return words, sums


def _survival_matrix(live: BoolArray, survives: BoolArray) -> csr_matrix:
    """(live paths, multipliers) 1 where a path survives the group of a multiplier.

    Args:
        live: (D, K) live paths.
        survives: (D, M, K) live paths that survive the group of each set; sets without such paths
            have no multiplier.
    """
    d, m = np.nonzero(survives.any(-1))
    path_row = np.cumsum(live.reshape(-1)).reshape(live.shape) - 1
    variable = np.zeros(survives.shape[:2], dtype=np.int64)
    variable[d, m] = np.arange(len(d))
    of_demand, of_set, k = np.nonzero(survives)
    entries = np.ones(len(k)), (path_row[of_demand, k], variable[of_demand, of_set])
    return coo_matrix(entries, shape=(int(live.sum()), len(d))).tocsr()


def _groups_of_sets(problem: Problem, protection: Protection) -> tuple[np.ndarray, BoolArray]:
    """(D, M) name of a group that leaves each set of paths, "" for no failure, and (D, M, K) the
    paths that it leaves.

    Sets are those of the paths that carry promises; a group may leave further paths, which count
    here.
    """
    exists = problem.ops.mask.cpu().numpy()
    sets = protection.sets.cpu().numpy() & exists[:, None]
    carries = np.zeros_like(exists)
    np.put_along_axis(
        carries, chosen_columns(problem.ops, problem.topology.num_links, protection.groups), True, 1
    )
    carries = carries[:, None]
    names = np.full(sets.shape[:2], "", dtype=object)
    unassigned = np.repeat(exists[:, None], sets.shape[1], 1)
    is_named = (exists[:, None] & carries == sets).all(-1)  # left by no failure
    for group, failed in enumerate(
        failed_paths(problem.ops, problem.topology.num_links, protection.groups)
    ):
        survivors = (exists & ~failed)[:, None]
        is_in_group = ~is_named & (survivors & carries == sets).all(-1)
        names[is_in_group] = str(group)
        unassigned = np.where(is_in_group[..., None], survivors, unassigned)
        is_named |= is_in_group
    return names, unassigned


NETWORK = "network.csv"
MATRIX = "matrix.csv"
PROOF = "proof.txt"
GROUPS = "groups.csv"
CHECKER = "check.py"
FILES = (NETWORK, MATRIX, PROOF, f"{PROOF}.gz", GROUPS, CHECKER)
_UNIT = float(1 << check.BITS)
# Values of s, one after the other.
_ROUNDINGS = (40, 34, 28, 22)
# Share by which a level of rates is lowered, so that the demands of the level are members.
_LEVEL_ROUNDING = 1e-9
# Largest price of programs whose prices have no unit; 2^-60 is then 8e-31 of it.
_LARGEST_PRICE = 2.0**40
# Factor of the terms of a level, whose bound is a quotient of sums: rounding is a larger share.
_MAX_TERMS = 2.0**10


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """One program of a proof.

    Attributes:
        kind: kind of the program; see :mod:`teal.proofs.check`.
        prices: (E,) y.
        value: reached by the flows.
        bound: proved by the prices.
        terms: sum of the magnitudes of the terms of the bound, of which rounding is a share; 1 for
            a ratio.
        name: class, level, or of a cost the share of every demand that is carried.
        multiplier: multiplier of each class that keeps its flow.
    """

    kind: str
    prices: FloatArray
    value: float
    bound: float
    terms: float = 1.0
    name: str = ""
    multiplier: dict[str, float] = dataclasses.field(default_factory=dict)

    def lines(self, rounding: int) -> Iterator[str]:
        """The lines of the proof, with claims that leave 2^-``rounding`` of room."""
        slack = 2.0 ** (1 - rounding)  # the flows take half of it
        name = self.name or "-"
        if self.kind == "utilisation":
            value = self.value * (1 + slack)
            bound = max(0.0, self.bound * (1 - slack))
        elif self.kind == "cost":
            value = self.value * (1 + slack)
            bound = max(0.0, self.bound - slack * self.terms)
            name = np.format_float_positional(float(self.name) * (1 - slack))
        else:
            value = 1.0 if self.kind == "level" else max(0.0, self.value * (1 - slack))
            bound = self.bound + slack * self.terms
            bound = min(1.0, bound) if self.kind == "concurrent" else bound  # a share
        yield f"program {self.kind} {name} {_units(value)} {_units(bound)}"
        prices = [int(y) for y in (self.prices * _UNIT).tolist()]
        yield " ".join(["prices", *(f"{link}:{y}" for link, y in enumerate(prices) if y)])
        for name, multiplier in self.multiplier.items():
            yield f"multiplier {name} {int(multiplier * _UNIT)}"


def _units(number: float) -> int:
    """A number in the unit of claims, rounded down."""
    above, below = number.as_integer_ratio()
    return (above << 2 * check.BITS) // below


def write_proof(
    folder: Path,
    problem: Problem,
    allocation: Allocation,
    *,
    over_all: bool = False,
    compressed: bool = False,
) -> list[str]:
    """Write network, matrix, proof and checker, and check them.

    Args:
        folder: empty folder; created if missing.
        problem: B = 1.
        allocation: allocation of the problem, with prices.
        over_all: whether the bound is to hold over all paths of the network; without, over the
            candidate paths.
        compressed: whether the proof, the largest file, is written with gzip.

    Returns:
        sentences that the checker prints.

    Raises:
        InputError: an allocation that breaks a rule, which is named with its link or demand; a
            program of which there is no proof.
        SolverError: the checker refuses the files.
    """
    problem = problem.to(torch.float64)
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    _require_provable(problem, over_all)
    # Check the allocation; bandwidth functions become a demand for each piece.
    splits = _live_splits(problem, allocation.splits.to(problem.demand))
    amounts = _sent_amounts(problem, splits)
    # Checked above: pieces have no room for flow beyond a demand's rate.
    if problem.functions is not None:
        problem, splits = _by_piece(problem, splits)
        amounts = _sent_amounts(problem, splits)
    claims = claims_of(problem, splits, allocation, over_all=over_all)
    # Write network, matrix and checker.
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / NETWORK, folder / MATRIX, folder / (f"{PROOF}.gz" if compressed else PROOF)]
    _write_table(files[0], _network(problem))
    _write_table(files[1], _matrix(problem))
    shutil.copy(check.__file__, folder / CHECKER)
    # Write the groups of promises, and prove their costs by multipliers.
    protection = problem.condition(Protection)
    multipliers: Sequence[Sequence[str]] | None = None
    if protection is not None:
        files.append(folder / GROUPS)
        _write_groups(files[3], protection)
        claim, multipliers = _promise_claim(problem, protection, claims[0])
        claims = [claim]
    # Write the flows, with more room after each refusal.
    carries_all = claims[0].kind == "utilisation"
    for rounding in _ROUNDINGS:
        _write_flows(
            files[2],
            files[:2],
            problem,
            amounts[0],
            claims,
            rounding,
            carries_all,
            over_all,
            multipliers,
        )
        try:
            return check.check(*map(str, files))
        except ValueError as refused:
            reason = refused
    raise SolverError(f"{files[2]}: the checker refuses the proof: {reason}")


def _write_groups(file: Path, protection: Protection) -> None:
    """Write the links of each group of failures."""
    groups = [
        {"group": str(number), "link": link}
        for number, links in enumerate(protection.groups)
        for link in links
    ]
    _write_table(file, groups, ("group", "link"))


def _promise_claim(
    problem: Problem, protection: Protection, claim: Claim
) -> tuple[Claim, Sequence[Sequence[str]]]:
    """Claim of promises with the bound that group multipliers prove, and the multipliers of each
    demand as words.

    Args:
        problem: B = 1.
        protection: groups of failures.
        claim: claim with the prices of the links.
    """
    multipliers, costs = group_multipliers(problem, protection, claim.prices, check.BITS)
    capacity_value = float(problem.capacity_value(torch.from_numpy(claim.prices)[None])[0])
    profit = (problem.demand_value - torch.from_numpy(costs)).clamp(min=0)
    bound = capacity_value + float((problem.demand[0] * profit).sum())
    return dataclasses.replace(claim, bound=bound, terms=bound + capacity_value), multipliers


def proved_gap(sentences: Sequence[str]) -> float:
    """The widest gap in the sentences of the checker; NaN of none."""
    return max(
        (float(sentence.rpartition("gap ")[2].partition("%")[0]) / 100 for sentence in sentences),
        default=math.nan,
    )


def _require_provable(problem: Problem, over_all: bool) -> None:
    """Raise InputError for a program of which there is no proof."""
    rules = problem.objective.rules
    unsupported = [c.name for c in problem.conditions if not isinstance(c, Protection)]
    is_linear = rules.is_sequence or rules.carries_all or type(rules).value is Rules.value
    if not isinstance(problem.paths, PathSet):
        raise InputError(
            "proof", "paths", "an allocation over paths of links", "one over segment lists"
        )
    if not is_linear or (problem.steps is not None and problem.functions is None):
        raise InputError(
            "proof", "objective", "an objective whose program is linear", problem.objective.name
        )
    if unsupported:
        raise InputError(
            "proof", "condition", "no side condition but promises", ", ".join(unsupported)
        )
    if problem.conditions and (over_all or rules.is_sequence):
        raise InputError(
            "proof",
            "",
            "one program over the candidate paths, for promises",
            problem.objective.name,
        )
    if over_all and rules.carries_all and (d := _first_without_candidate(problem)) is not None:
        expected = "a candidate path, since the network connects it and all demand must be carried"
        raise InputError("proof", _name_of(problem, d), expected, "none")
    if over_all and rules.is_sequence:
        raise InputError(
            "proof", "", "candidate paths, for classes and levels", problem.objective.name
        )


def _first_without_candidate(problem: Problem) -> int | None:
    """A demand without a live candidate path between nodes that live links connect; None if there
    is none.
    """
    without = ((problem.demand[0] > 0) & ~problem.routable[0]).nonzero()[:, 0].tolist()
    if not without:
        return None
    import networkx as nx  # half a second, which commands without a proof need not wait for

    live = (problem.capacity[0] > 0).cpu().numpy()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.topology.num_nodes))
    ends = problem.topology.link_source[live].tolist(), problem.topology.link_target[live].tolist()
    graph.add_edges_from(zip(*ends, strict=True))
    return next((d for d in without if nx.has_path(graph, *problem.paths.pairs[d].tolist())), None)


def _name_of(problem: Problem, d: int) -> str:
    return "demand from " + " to ".join(
        problem.topology.node_names[node] for node in problem.paths.pairs[d]
    )


def _live_splits(problem: Problem, splits: Tensor) -> Tensor:
    """(1, D, K) splits of at least 0 on live paths; raises InputError for others, which are
    named.
    """
    carries = splits.abs() > TOLERANCE
    if bool((carries & ~problem.path_mask).any()):
        d, k = (carries & ~problem.path_mask)[0].nonzero()[0].tolist()
        if not problem.paths.mask[d, k]:
            raise InputError(
                "proof", _name_of(problem, d), "splits on candidate paths", f"one on path {k}"
            )
        link = next(e for e in problem.paths.links_of(d, k) if problem.capacity[0, e] <= 0)
        flow = float(problem.flows(splits)[0, d, k])
        name = f"link {problem.topology.link_name(link)}"
        raise InputError(
            "proof",
            name,
            "no flow: its capacity is 0",
            f"{flow:.9g} Gbit/s of the {_name_of(problem, d)}",
        )
    if bool((carries & (splits < 0)).any()):
        d, k = (carries & (splits < 0))[0].nonzero()[0].tolist()
        raise InputError(
            "proof",
            _name_of(problem, d),
            "flows of at least 0",
            float(problem.flows(splits)[0, d, k]),
        )
    return torch.where(problem.path_mask, splits.clamp(min=0), 0)


def _by_piece(problem: Problem, splits: Tensor) -> tuple[Problem, Tensor]:
    """The weighted program with a demand for each piece of a bandwidth function, and its splits:
    the same optimum.

    Slopes fall, so that to fill the pieces of a demand one after the other is best.
    """
    steps = problem.steps
    assert steps is not None
    end = steps.end[0]
    level = steps.level.expand_as(steps.end[0])
    start = torch.cat([torch.zeros_like(end[:, :1]), end[:, :-1]], 1)
    total = splits.sum(-1)[0]
    filled = (total[:, None] - start).clamp(min=0).minimum(end - start)
    # For each piece the demands that have it: rate, value, and share of the flow.
    parts = list[PathSet]()
    rates = list[Tensor]()
    values = list[Tensor]()
    shares = list[Tensor]()
    for c in range(end.shape[1]):
        rows = torch.ones_like(end[:, c], dtype=torch.bool) if c == 0 else end[:, c] > start[:, c]
        rows = rows.nonzero()[:, 0]
        width = (end - start)[rows, c]
        parts.append(of_demands(problem.paths, rows.cpu().numpy()))
        rates.append(problem.demand[0, rows] * width)
        values.append(problem.demand_value[rows] * level[rows, c])
        of_flow = torch.where(width > 0, filled[rows, c] / width.clamp(min=1e-300), 0) / total[
            rows
        ].clamp(min=1e-300)
        shares.append(splits[0, rows] * of_flow[:, None])
    # Join the pieces as one problem.
    paths = joined(parts)
    by_piece = dataclasses.replace(
        problem,
        objective=Objective(ObjectiveName.WEIGHTED_FLOW),
        paths=paths,
        demand=torch.cat(rates)[None],
        ops=make_path_ops(paths, problem.ops.device),
        demand_value=torch.cat(values),
        steps=None,
        functions=None,
        classes=None,
    )
    return by_piece, torch.cat(shares)[None]


def _sent_amounts(problem: Problem, splits: Tensor) -> Tensor:
    """(1, D, K) Gbit/s on each path, within rates and capacities; raises InputError for what breaks
    a rule by more.
    """
    protection = problem.condition(Protection)
    flows = problem.flows(splits if protection is None else protection.reserved(splits))
    excess = flows.sum(-1) / problem.demand.clamp(min=1e-300) - 1
    if protection is None and bool((excess > TOLERANCE).any()):
        raise _broken_demand(problem, flows, int(excess.argmax()), "at most ")
    if not problem.objective.may_shed:
        missing = torch.where(problem.routable & (problem.demand > 0), -excess, 0)
        if bool((missing > TOLERANCE).any()):
            raise _broken_demand(problem, flows, int(missing.argmax()), "")
    if not problem.objective.rules.holds_capacity:
        return flows
    load = problem.ops.link_sum(flows)
    over = problem.program.overload(load)
    if bool((over > TOLERANCE).any()):
        link = int(over.argmax())
        expected = f"at most {float(problem.capacity[0, link])!r} Gbit/s"
        raise InputError(
            "proof", f"link {problem.topology.link_name(link)}", expected, float(load[0, link])
        )
    return flows / problem.ops.path_max(1 + over.clamp(min=0))[0].clamp(min=1)


def _broken_demand(problem: Problem, flows: Tensor, d: int, at_most: str) -> InputError:
    expected = f"{at_most}{float(problem.demand[0, d])!r} Gbit/s"
    return InputError("proof", _name_of(problem, d), expected, float(flows[0, d].sum()))


def claims_of(
    problem: Problem, splits: Tensor, allocation: Allocation, *, over_all: bool
) -> list[Claim]:
    """Claims about an allocation, by the kind of its program."""
    claimed_prices = (
        torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    )
    rules = problem.objective.rules
    # A claim for each class or level.
    if rules.is_sequence:
        of_programs = allocation.program_prices
        if problem.classes is not None:
            return _class_claims(
                problem, splits, claimed_prices if of_programs is None else of_programs.prices[0]
            )
        levels = [] if of_programs is None else _level_claims(problem, splits, allocation)
        return levels or [_rate_claim(problem, splits)]
    # A cost, a utilisation or served share, or a value.
    if rules.may_have_no_allocation:
        return [_cost_claim(problem, splits, claimed_prices, over_all=over_all)]
    if rules.carries_all:
        return [_ratio_claim(problem, splits, claimed_prices, over_all=over_all)]
    return [_value_claim(problem, splits, claimed_prices, over_all=over_all)]


def _rate_claim(problem: Problem, splits: Tensor) -> Claim:
    """Claim of a flow that the rates alone bound, since no level that links limit is known."""
    flow = problem.flows(splits).sum(-1)[0]
    max_rate = problem.routable_demand[0]
    value, bound = (float((problem.demand_value * rate).sum()) for rate in (flow, max_rate))
    return Claim("value", np.zeros(problem.capacity.shape[1]), value, bound, bound)


def _ratio_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Claim of a utilisation or of a common served share."""
    value = float(problem.value(splits)[0])
    is_utilisation = problem.objective.name == problem.solved.objective.name
    prices = _without_unit(prices)
    bound = float(_bound(problem, prices, over_all=over_all)[0]) if bool(prices.any()) else math.inf
    trivial = 0.0 if is_utilisation else 1.0
    kind = "utilisation" if is_utilisation else "concurrent"
    return Claim(kind, _row(prices), value, bound if math.isfinite(bound) else trivial)


def _value_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Claim of a value or of promises, with the scale of the prices that proves the smallest
    bound.
    """
    value = float(problem.value(splits)[0])
    prices = usable_prices(problem, prices)
    if not over_all:
        program = problem.rewritten.program
        best = program.bounds_along(prices, PRICE_SCALES)[:, 0].argmin()
        prices = prices * PRICE_SCALES[best]
    bound = float(_bound(problem, prices, over_all=over_all)[0])
    terms = bound + float(problem.capacity_value(prices)[0])
    return Claim("promise" if problem.conditions else "value", _row(prices), value, bound, terms)


def _cost_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Claim of a least cost."""
    prices = finite_prices(prices)
    amounts = _sent_amounts(problem, splits)
    if not over_all:
        scales = torch.cat([PRICE_SCALES.new_zeros(1), PRICE_SCALES])
        best = problem.program.bounds_along(prices, scales)[:, 0].argmin()
        prices = prices * scales[best]
    bound = float(_bound(problem, prices, over_all=over_all)[0])
    lower_bound = float(_bound(problem, 0 * prices, over_all=over_all)[0])
    # Prices that prove less than none do.
    if bound <= lower_bound:
        prices = 0 * prices
        bound = lower_bound
    carried = amounts.sum(-1) / problem.demand.clamp(min=1e-300)
    counts = problem.routable & (problem.demand > 0)
    share = min(1.0, float(torch.where(counts, carried, 1).min())) if bool(counts.any()) else 1.0
    value = -float((amounts * problem.path_value).sum())
    terms = bound + 2 * float(problem.capacity_value(prices)[0])
    return Claim("cost", _row(prices), value, bound, terms, repr(share))


def _without_unit(prices: Tensor) -> Tensor:
    """Prices of which multiples prove the same, with the largest one at the largest that is
    written.
    """
    prices = finite_prices(prices)
    largest = prices.amax()
    return prices * (_LARGEST_PRICE / largest) if largest > 0 else prices


def _bound(problem: Problem, prices: Tensor, *, over_all: bool) -> Tensor:
    if over_all:
        return all_paths_bound(problem, prices)
    program = problem.rewritten.program
    return problem.objective.rules.from_score(problem, program.bound(prices))


def _row(prices: Tensor) -> FloatArray:
    row: FloatArray = prices.reshape(-1).cpu().numpy().astype(np.float64)
    return row


def _class_claims(problem: Problem, splits: Tensor, prices: Tensor) -> list[Claim]:
    """A claim a class: the multiplier of a higher class is the price of the dearest demand that it
    must carry.
    """
    assert problem.classes is not None
    carried = problem.flows(splits).sum(-1)[0]
    claims = list[Claim]()
    names = _class_names(problem)
    for number, name in enumerate(names):
        # Bound of the class by its prices.
        class_prices = finite_prices(prices[min(number, len(prices) - 1)][None])
        price = problem.cheapest_path_cost(problem.ops.path_sum(class_prices), unroutable=math.inf)[
            0
        ]
        capacity_value = float(problem.capacity_value(class_prices)[0])
        rows = problem.classes.rows(number)
        value = float(carried[rows].sum())
        profit = float((problem.demand[0, rows] * (1 - price[rows]).clamp(min=0)).sum())
        bound = capacity_value + profit
        terms = capacity_value + profit
        # Multipliers of the higher classes, and their terms of the bound.
        multipliers = {}
        for upper in range(number):
            rows = problem.classes.rows(upper)
            demand = problem.demand[0, rows]
            paid = price[rows]
            carried_value = float(carried[rows].sum())
            order = paid.argsort()
            needed = int((demand[order].cumsum(0) < carried_value).sum())
            multiplier = float(paid[order[min(needed, len(order) - 1)]]) if carried_value else 0.0
            multiplier = int(multiplier * _UNIT) / _UNIT if math.isfinite(multiplier) else 0.0
            demand_value = float((demand * (multiplier - paid).clamp(min=0)).sum())
            bound = bound + demand_value - multiplier * carried_value
            terms = terms + demand_value + multiplier * carried_value
            multipliers[names[upper]] = multiplier
        claims.append(
            Claim("class", _row(class_prices), value, max(bound, value), terms, name, multipliers)
        )
    return claims


def _level_claims(problem: Problem, splits: Tensor, allocation: Allocation) -> list[Claim]:
    """A claim for each level of rates whose growth the prices of its program bound."""
    assert allocation.program_prices is not None
    rate = problem.flows(splits).sum(-1)[0]
    weight = problem.demand_value
    claims = list[Claim]()
    for level, prices in allocation.program_prices.of_row(0):
        level *= 1 - _LEVEL_ROUNDING
        level_prices = _without_unit(prices[None].to(problem.capacity))
        price = problem.cheapest_path_cost(problem.ops.path_sum(level_prices))[0]
        grows = rate >= level * weight
        value = float(problem.capacity_value(level_prices)[0])
        growth = growth_from(price, value, rate, grows, level * weight, problem.demand[0])
        if math.isfinite(growth) and level > 0:
            terms = _MAX_TERMS * max(1.0, growth)
            name = np.format_float_positional(level)
            claims.append(Claim("level", _row(level_prices), 1.0, growth, terms, name))
    return claims


def _class_names(problem: Problem) -> list[str]:
    """Names of the classes as a proof has them, where spaces separate words."""
    return (
        [] if problem.classes is None else [quote(name, safe="") for name in problem.classes.names]
    )


def _network(problem: Problem) -> list[dict[str, object]]:
    topology = problem.topology
    names = problem.topology.node_names
    rows: list[dict[str, object]] = [
        {"source": names[s], "target": names[t], "capacity": repr(abs(c))}
        for s, t, c in zip(
            topology.link_source, topology.link_target, problem.capacity[0].tolist(), strict=True
        )
    ]
    if bool((problem.link_cost > 0).any()):
        rows = [
            {**row, "cost": repr(cost)}
            for row, cost in zip(rows, problem.link_cost.tolist(), strict=True)
        ]
    return rows


def _matrix(problem: Problem) -> list[dict[str, object]]:
    names = problem.topology.node_names
    rules = problem.objective.rules
    rows: list[dict[str, object]] = [
        {"source": names[s], "target": names[t], "rate": repr(abs(rate))}
        for (s, t), rate in zip(
            problem.paths.pairs.tolist(), problem.demand[0].tolist(), strict=True
        )
    ]
    is_weighted = (
        problem.classes is None
        and not rules.carries_all
        and bool((problem.demand_value != 1).any())
    )
    if is_weighted:
        rows = [
            {**row, "weight": repr(w)}
            for row, w in zip(rows, problem.demand_value.tolist(), strict=True)
        ]
    if problem.classes is not None:
        of_demand = np.array(problem.classes.names, dtype=object)[problem.classes.of_demand]
        rows = [{**row, "class": name} for row, name in zip(rows, of_demand, strict=True)]
    return rows


def _write_table(
    file: Path, rows: Sequence[dict[str, object]], columns: Sequence[str] = ()
) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns or rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_flows(
    file: Path,
    inputs: Sequence[Path],
    problem: Problem,
    amounts: Tensor,
    claims: Sequence[Claim],
    rounding: int,
    carries_all: bool,
    over_all: bool,
    multipliers: Sequence[Sequence[str]] | None,
) -> None:
    """Write the proof; arguments as in :func:`write_proof`, with (D, K) Gbit/s ``sent``."""
    body = io.StringIO()
    digest = hashlib.sha256()
    for line, path_list in _demand_lines(
        problem, amounts, 0 if carries_all else rounding, carries_all, over_all, multipliers
    ):
        body.write(line)
        digest.update(path_list)
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in inputs]
    head = ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"]
    head.append("paths all" if over_all else f"paths listed {digest.hexdigest()}")
    for claim in claims:
        head += claim.lines(rounding)
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("\n".join([*head, "flows", ""]))
        stream.write(body.getvalue())
        stream.write("end\n")


def _demand_lines(
    problem: Problem,
    amounts: Tensor,
    rounding: int,
    carries_all: bool,
    over_all: bool,
    multipliers: Sequence[Sequence[str]] | None,
) -> Iterator[tuple[str, bytes]]:
    """The line of each demand, and its line in the list of paths."""
    mask = problem.path_mask[0].cpu().numpy()
    if over_all:
        mask = mask & (amounts.cpu().numpy() > 0)
    demand_index, k = np.nonzero(mask)
    along = links_along(problem.topology, problem.paths, demand_index, k)
    numbers = [str(i) for i in range(problem.topology.num_links)]
    starts = along.link_starts.tolist()
    links = along.links
    factor = (1 - 2.0**-rounding if rounding else 1.0) * _UNIT
    units = [int(x) for x in (amounts.cpu().numpy()[demand_index, k] * factor).tolist()]
    ptr = np.searchsorted(demand_index, np.arange(len(mask) + 1)).tolist()
    rates: AnyArray = problem.demand[0].cpu().numpy() * _UNIT
    for d, rate in enumerate(rates.tolist()):
        first = ptr[d]
        last = ptr[d + 1]
        flows = units[first:last]
        if carries_all and flows and rate > 0:
            # One unit in 2^52 more than the float: at least the decimal that stands for it.
            missing = int(rate) + (int(rate) >> 52) + 1 - sum(flows)
            flows[flows.index(max(flows))] += max(0, missing)
        paths = [
            ",".join([numbers[i] for i in links[starts[j] : starts[j + 1]].tolist()])
            for j in range(first, last)
        ]
        words = [f"{flow}:{path}" for flow, path in zip(flows, paths, strict=True)]
        first_words = multipliers[d] if multipliers is not None else ()
        yield (
            " ".join([str(d), *first_words, *words]) + "\n",
            (" ".join([str(d), *paths]) + "\n").encode(),
        )
