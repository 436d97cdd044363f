r"""Write the proof of an allocation, with network and matrix, as files that
:mod:`teal.proofs.check` checks.

Flows x[d, k] of a matrix become integer multiples of 2^-60 Gbit/s.  They are multiplied by
1 - 2^-s first, with s = 40, so that rounded sums stay below capacities and rates, which the files
give as shortest decimals.  Where all demand must be carried, the shortfall by rounding is added to
the path with the largest flow.  Prices are rounded down to multiples of 2^-60, since any prices
prove a bound.  Claims are weakened by twice the margin of the flows, 2e-12 of the value.  If the
checker refuses the files, s is lowered; SolverError if no s is enough.

Promises (guaranteed rates) are proved by a multiplier for each group of links that fail together.
A protected flow of 1 Gbit/s reserves a[k] on the paths so that it survives every group; its
smallest cost is

    min sum_k price[k] a[k]   s.t.   sum over k that survive g of a[k] >= 1 for every g
    =  max sum_g m[g]         s.t.   sum over g that k survives of m[g] <= price[k],  m >= 0,

by linear duality.  Only groups with minimal sets of surviving paths need a multiplier.
Entry point: :func:`write_proof`.
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
_LP_PRICE_SCALE = 2.0**14
# Multipliers are lowered by this share, so that their rounded sums stay within prices.
_MULTIPLIER_MARGIN = 2.0**-40


def group_multipliers(
    problem: Problem, protection: Protection, prices: FloatArray, bits: int
) -> tuple[list[list[str]], FloatArray]:
    """Return the group multipliers that prove the least cost of a promise to each demand.

    A promise is a rate that survives the failure of any one group of links.  For each live path of
    a demand, the multipliers of the groups that the path survives must sum to at most the price of
    the path; the sum of all multipliers of the demand, the proved cost per Gbit/s, is maximised.

    Args:
        problem: problem with B = 1.
        protection: groups of links, and the minimal sets of paths that survive them.
        prices: (E,) dual price of each link, value per Gbit/s.
        bits: multipliers are integer multiples of 2^-bits.

    Returns:
        for each demand the words ``@GROUP:MULTIPLIER`` of its line in the proof, and the sums (D,)
        of the multipliers.

    Raises:
        SolverError: the linear program was not solved.
    """
    # (D, K) live paths and their prices, and for each of M sets of surviving paths (D, M) its group
    # and (D, M, K) the live paths that survive the group.
    is_live = problem.path_mask[0].cpu().numpy()
    rounded_prices = torch.from_numpy(np.floor(prices * 2.0**bits) / 2.0**bits)
    path_price = problem.ops.path_sum(rounded_prices[None].to(problem.capacity))[0].cpu().numpy()
    group_name, survives = _surviving_paths_by_group(problem, protection)
    survives &= is_live[:, None]
    # Demand and index of each set of surviving paths that has a live path: one multiplier each.
    set_demand, set_index = np.nonzero(survives.any(-1))
    # LP over all demands: maximise the sum of the multipliers within the prices of the live paths.
    survival_matrix = _survival_matrix(is_live, survives)
    scaled_multiplier = np.zeros(0)
    if len(set_demand):
        scaled_multiplier = solve_lp(
            -np.ones(len(set_demand)), (survival_matrix, _LP_PRICE_SCALE * path_price[is_live])
        ).solution("the multipliers of the groups")
    # The solver keeps its constraints to 1e-7 only: set multipliers on paths of price 0 to 0, and
    # scale the others of each demand down so that all constraints hold exactly.
    multiplier = np.maximum(scaled_multiplier, 0) / _LP_PRICE_SCALE
    multiplier[(survival_matrix.T @ (path_price[is_live] <= 0)) > 0] = 0
    path_charge = np.zeros(is_live.shape)
    path_charge[is_live] = survival_matrix @ multiplier
    scale_factor = np.where(
        path_charge > path_price, path_price / np.maximum(path_charge, 1e-300), 1
    ).min(1)[set_demand]
    # Round the multipliers down, and write them as words.
    words: list[list[str]] = [[] for _ in is_live]
    multiplier_sum = np.zeros(len(is_live))
    for index in np.flatnonzero(multiplier > 0).tolist():
        units = int(multiplier[index] * scale_factor[index] * (1 - _MULTIPLIER_MARGIN) * 2.0**bits)
        words[set_demand[index]].append(
            f"@{group_name[set_demand[index], set_index[index]]}:{units}"
        )
        multiplier_sum[set_demand[index]] += units / 2.0**bits
    # Demands that some group cuts off from all paths: no price limits the multiplier of the group.
    # One above the value of the demand makes any promise unprofitable, which proves a promise of 0.
    demand_value = problem.demand_value.cpu().numpy()
    for unprotected_demand in np.flatnonzero(~survives.any(-1).all(-1)).tolist():
        name = group_name[
            unprotected_demand, np.flatnonzero(~survives[unprotected_demand].any(-1))[0]
        ]
        words[unprotected_demand] = [
            f"@{name}:{int((demand_value[unprotected_demand] + 1) * 2.0**bits)}"
        ]
        multiplier_sum[unprotected_demand] = demand_value[unprotected_demand] + 1
    return words, multiplier_sum


def _survival_matrix(is_live: BoolArray, survives: BoolArray) -> csr_matrix:
    """Return a 0-1 matrix that says which live path survives the group of which multiplier.

    Its rows are the live paths of all demands in order, its columns the sets of surviving paths
    that are not empty; each set has a multiplier.

    Args:
        is_live: (D, K) whether each path is live.
        survives: (D, M, K) live paths of each of M sets per demand, which survive the set's group.
    """
    # Row of each live path, and column of each set.
    set_demand, set_index = np.nonzero(survives.any(-1))
    path_row = np.cumsum(is_live.reshape(-1)).reshape(is_live.shape) - 1
    set_column = np.zeros(survives.shape[:2], dtype=np.int64)
    set_column[set_demand, set_index] = np.arange(len(set_demand))
    # An entry of 1 for each live path of a set.
    demand_of_entry, set_of_entry, path_of_entry = np.nonzero(survives)
    entries = (
        np.ones(len(path_of_entry)),
        (path_row[demand_of_entry, path_of_entry], set_column[demand_of_entry, set_of_entry]),
    )
    return coo_matrix(entries, shape=(int(is_live.sum()), len(set_demand))).tocsr()


def _surviving_paths_by_group(
    problem: Problem, protection: Protection
) -> tuple[np.ndarray, BoolArray]:
    """Return for each set of surviving paths a group whose failure leaves exactly this set.

    Sets contain the protected paths only, at most six of a demand; the returned paths include
    others that survive the group.

    Args:
        problem: problem with B = 1.
        protection: groups of links, and M minimal sets of surviving paths of each demand.

    Returns:
        the index of each set's group as text (D, M), "" for no failure, and the paths (D, M, K)
        that survive the group.
    """
    # (D, K) existing paths, and (D, M, K) paths of each set.
    exists = problem.ops.mask.cpu().numpy()
    surviving_sets = protection.sets.cpu().numpy() & exists[:, None]
    # (D, K) protected paths of each demand.
    is_protected = np.zeros_like(exists)
    np.put_along_axis(
        is_protected,
        chosen_columns(problem.ops, problem.topology.num_links, protection.groups),
        True,
        1,
    )
    is_protected = is_protected[:, None]
    # Assign to each set the first group that leaves it, beginning with no failure.
    group_names = np.full(surviving_sets.shape[:2], "", dtype=object)
    survives = np.repeat(exists[:, None], surviving_sets.shape[1], 1)
    is_assigned = (exists[:, None] & is_protected == surviving_sets).all(-1)
    for group, has_failed in enumerate(
        failed_paths(problem.ops, problem.topology.num_links, protection.groups)
    ):
        survivors = (exists & ~has_failed)[:, None]
        is_left_by_group = ~is_assigned & (survivors & is_protected == surviving_sets).all(-1)
        group_names[is_left_by_group] = str(group)
        survives = np.where(is_left_by_group[..., None], survivors, survives)
        is_assigned |= is_left_by_group
    return group_names, survives


NETWORK = "network.csv"
MATRIX = "matrix.csv"
PROOF = "proof.txt"
GROUPS = "groups.csv"
CHECKER = "check.py"
FILES = (NETWORK, MATRIX, PROOF, f"{PROOF}.gz", GROUPS, CHECKER)
# Number of units of 2^-60 in 1.
_UNITS_PER_ONE = float(1 << check.BITS)
# Values of s, in the order in which they are tried: flows are scaled by 1 - 2^-s.
_MARGIN_BITS = (40, 34, 28, 22)
# A fair level is lowered by this share, so that rounding excludes no demand at the level.
_LEVEL_MARGIN = 1e-9
# Prices without a unit (any multiple gives the same bound) are scaled to this maximum, of which the
# rounding unit 2^-60 is 8e-31.
_LARGEST_PRICE = 2.0**40
# Factor of the rounding margin of a level, whose bound is a quotient of sums.
_LEVEL_MARGIN_FACTOR = 2.0**10


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """Claim of a proof about one program: a value that flows reach, and a bound from prices.

    Attributes:
        kind: kind of the program: value, class, promise, level, utilisation, concurrent or cost.
        prices: (E,) dual price of each link.
        value: value that the flows reach.
        bound: bound that the prices prove.
        terms: sum of the absolute terms of the bound, to which rounding is relative; 1 for a ratio.
        name: name of a class, value of a level, or for a cost the served share of every demand;
            empty for other programs.
        multiplier: for a class, the multiplier of each higher class, whose flow stays; by name.
    """

    kind: str
    prices: FloatArray
    value: float
    bound: float
    terms: float = 1.0
    name: str = ""
    multiplier: dict[str, float] = dataclasses.field(default_factory=dict)

    def lines(self, margin_bits: int) -> Iterator[str]:
        """Yield the lines of the proof that state this claim: program, prices and multipliers.

        Args:
            margin_bits: s; value and bound are weakened by the share 2^(1 - s), which covers the
                factor 1 - 2^-s of the flows.
        """
        # Weaken value and bound: the rounding of the flows uses up half of this slack.
        slack = 2.0 ** (1 - margin_bits)
        name = self.name or "-"
        # Minimised programs: a larger value, a smaller bound.
        if self.kind == "utilisation":
            value = self.value * (1 + slack)
            bound = max(0.0, self.bound * (1 - slack))
        elif self.kind == "cost":
            value = self.value * (1 + slack)
            bound = max(0.0, self.bound - slack * self.terms)
            # The name of a cost is the served share of every demand, which rounding lowers.
            name = np.format_float_positional(float(self.name) * (1 - slack))
        else:
            # Maximised programs.  The value of a level is 1 (itself), its bound the growth.
            value = 1.0 if self.kind == "level" else max(0.0, self.value * (1 - slack))
            bound = self.bound + slack * self.terms
            # A served share is at most 1.
            bound = min(1.0, bound) if self.kind == "concurrent" else bound
        # Numbers are integers: multiples of 2^-120 for value and bound, of 2^-60 for prices.
        yield f"program {self.kind} {name} {_claim_units(value)} {_claim_units(bound)}"
        price_units = [int(units) for units in (self.prices * _UNITS_PER_ONE).tolist()]
        yield " ".join(
            ["prices", *(f"{link}:{units}" for link, units in enumerate(price_units) if units)]
        )
        for name, multiplier in self.multiplier.items():
            yield f"multiplier {name} {int(multiplier * _UNITS_PER_ONE)}"


def _claim_units(number: float) -> int:
    """Return a number as a multiple of 2^-120, the unit of claims, rounded down."""
    numerator, denominator = number.as_integer_ratio()
    return (numerator << 2 * check.BITS) // denominator


def write_proof(
    folder: Path,
    problem: Problem,
    allocation: Allocation,
    *,
    over_all: bool = False,
    compressed: bool = False,
) -> list[str]:
    """Write the proof of an allocation with network, matrix and checker, and run the checker.

    Args:
        folder: empty folder; created if missing.
        problem: B = 1.
        allocation: allocation of the problem, with prices.
        over_all: whether to prove the bound over all paths of the network, not only over the
            candidate paths.
        compressed: whether the proof, the largest file, is written with gzip.

    Returns:
        the sentences that the checker prints, one for each proved claim.

    Raises:
        InputError: an allocation that breaks a rule, with the link or demand; a program that proofs
            do not support.
        SolverError: the checker refuses the files.
    """
    problem = problem.to(torch.float64)
    if allocation.paths is not None:
        problem = problem.with_paths(allocation.paths)
    _require_provable(problem, over_all)
    # Check the allocation; flows are (1, D, K) Gbit/s on each path.
    splits = _live_splits(problem, allocation.splits.to(problem.demand))
    flows = _feasible_flows(problem, splits)
    # Bandwidth functions become a weighted demand for each piece.
    if problem.functions is not None:
        problem, splits = _split_into_pieces(problem, splits)
        flows = _feasible_flows(problem, splits)
    claims = make_claims(problem, splits, allocation, over_all=over_all)
    # Write network, matrix and checker; the files are in the order of the checker's arguments.
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / NETWORK, folder / MATRIX, folder / (f"{PROOF}.gz" if compressed else PROOF)]
    _write_table(files[0], _network_rows(problem))
    _write_table(files[1], _matrix_rows(problem))
    shutil.copy(check.__file__, folder / CHECKER)
    # Write the groups of promises, and prove their costs by multipliers.
    protection = problem.condition(Protection)
    multipliers: Sequence[Sequence[str]] | None = None
    if protection is not None:
        files.append(folder / GROUPS)
        _write_groups(files[3], protection)
        claim, multipliers = _promise_claim(problem, protection, claims[0])
        claims = [claim]
    # Write the flows and check the files; lower the flows further after each refusal.
    carries_all = claims[0].kind == "utilisation"
    for margin_bits in _MARGIN_BITS:
        _write_flows(
            files[2],
            files[:2],
            problem,
            flows[0],
            claims,
            margin_bits,
            carries_all,
            over_all,
            multipliers,
        )
        try:
            return check.check(*map(str, files))
        except ValueError as error:
            reason = error
    raise SolverError(
        f"{files[2]}: the checker refuses the proof, even with the largest margin for rounding: "
        f"{reason}"
    )


def _write_groups(file: Path, protection: Protection) -> None:
    """Write the table of the links of each group that fails together.

    Args:
        file: file to write.
        protection: groups of links, which get numbers from 0.
    """
    groups = [
        {"group": str(number), "link": link}
        for number, links in enumerate(protection.groups)
        for link in links
    ]
    _write_table(file, groups, ("group", "link"))


def _promise_claim(
    problem: Problem, protection: Protection, claim: Claim
) -> tuple[Claim, Sequence[Sequence[str]]]:
    """Return the claim of promises (guaranteed rates), with the bound that group multipliers prove.

    The bound is c' y + sum of demand * max(0, value - sum of the demand's multipliers), with link
    capacities c and link prices y.

    Args:
        problem: problem with B = 1.
        protection: groups of links that fail together.
        claim: claim with the prices y of the links.

    Returns:
        the claim, and the multipliers of each demand as words ``@GROUP:MULTIPLIER``.
    """
    multipliers, costs = group_multipliers(problem, protection, claim.prices, check.BITS)
    capacity_value = float(problem.capacity_value(torch.from_numpy(claim.prices)[None])[0])
    profit = (problem.demand_value - torch.from_numpy(costs)).clamp(min=0)
    bound = capacity_value + float((problem.demand[0] * profit).sum())
    return dataclasses.replace(claim, bound=bound, terms=bound + capacity_value), multipliers


def proved_gap(sentences: Sequence[str]) -> float:
    """Return the largest gap that sentences of the checker state, as a fraction; NaN for none."""
    return max(
        (float(sentence.rpartition("gap ")[2].partition("%")[0]) / 100 for sentence in sentences),
        default=math.nan,
    )


def _require_provable(problem: Problem, over_all: bool) -> None:
    """Raise InputError for a program that proofs do not support.

    Args:
        problem: problem with B = 1.
        over_all: whether the bound is to be proved over all paths of the network.
    """
    # Protection is the only supported condition.  The program is linear for a sequence, if all
    # demand must be carried, or if the objective keeps Rules.value, the sum over paths of value
    # times flow.
    rules = problem.objective.rules
    unsupported = [
        condition.name for condition in problem.conditions if not isinstance(condition, Protection)
    ]
    is_linear = rules.is_sequence or rules.carries_all or type(rules).value is Rules.value
    if not isinstance(problem.paths, PathSet):
        raise InputError.invalid(
            "proof", "paths", "proofs do not support segment lists", "use candidate paths"
        )
    # Value steps are supported only if they come from bandwidth functions.
    if not is_linear or (problem.steps is not None and problem.functions is None):
        raise InputError(
            "proof", "objective", "an objective whose program is linear", problem.objective.name
        )
    if unsupported:
        raise InputError.invalid(
            "proof",
            "condition",
            f"proofs do not support the condition {', '.join(unsupported)}",
            "prove an allocation of the problem without it",
        )
    # Promises (rates guaranteed under failures) need a single program over the candidate paths.
    if problem.conditions and (over_all or rules.is_sequence):
        scope = "over all paths" if over_all else f"under {problem.objective.name}"
        raise InputError.invalid(
            "proof",
            "",
            f"promises cannot be proved {scope}",
            "prove them over the candidate paths, under one program",
        )
    if over_all and rules.carries_all and (d := _first_without_candidate(problem)) is not None:
        raise InputError.invalid(
            "proof",
            _demand_name(problem, d),
            "the demand has no candidate path, although the network connects its nodes",
            "add one: over all paths, all demand must be carried",
        )
    # Classes and levels are proved over the candidate paths only.
    if over_all and rules.is_sequence:
        raise InputError.invalid(
            "proof",
            "",
            f"{problem.objective.name} cannot be proved over all paths",
            "prove it over the candidate paths",
        )


def _first_without_candidate(problem: Problem) -> int | None:
    """Return the first demand between connected nodes that has no live candidate path.

    None if there is no such demand.  Nodes are connected if live links lead from the source to the
    target.
    """
    unroutable = ((problem.demand[0] > 0) & ~problem.routable[0]).nonzero()[:, 0].tolist()
    if not unroutable:
        return None
    # The import takes half a second, which commands without a proof save.
    import networkx as nx

    live = (problem.capacity[0] > 0).cpu().numpy()
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.topology.num_nodes))
    endpoints = (
        problem.topology.link_source[live].tolist(),
        problem.topology.link_target[live].tolist(),
    )
    graph.add_edges_from(zip(*endpoints, strict=True))
    return next(
        (d for d in unroutable if nx.has_path(graph, *problem.paths.pairs[d].tolist())), None
    )


def _demand_name(problem: Problem, d: int) -> str:
    """Return the name of demand ``d`` for messages, such as "demand from A to B"."""
    return "demand from " + " to ".join(
        problem.topology.node_names[node] for node in problem.paths.pairs[d]
    )


def _live_splits(problem: Problem, splits: Tensor) -> Tensor:
    """Return the splits (1, D, K) without rounding errors: at least 0, and 0 on failed paths.

    Raises:
        InputError: a split beyond the tolerance that is negative, on a failed path or on a missing
            one; the message names the demand or the link.
    """
    # Significant splits on failed or missing paths.
    is_significant = splits.abs() > TOLERANCE
    if bool((is_significant & ~problem.path_mask).any()):
        d, k = (is_significant & ~problem.path_mask)[0].nonzero()[0].tolist()
        if not problem.paths.mask[d, k]:
            raise InputError.invalid(
                "proof",
                _demand_name(problem, d),
                f"a split is on path {k}, which does not exist",
                "move its flow to an existing path",
            )
        link = next(e for e in problem.paths.links_of(d, k) if problem.capacity[0, e] <= 0)
        flow = float(problem.flows(splits)[0, d, k])
        name = f"link {problem.topology.link_name(link)}"
        raise InputError.invalid(
            "proof",
            name,
            f"the link has capacity 0, but carries {flow:.9g} Gbit/s of the "
            f"{_demand_name(problem, d)}",
        )
    # Significant negative splits.
    if bool((is_significant & (splits < 0)).any()):
        d, k = (is_significant & (splits < 0))[0].nonzero()[0].tolist()
        raise InputError(
            "proof",
            _demand_name(problem, d),
            "flows of at least 0",
            float(problem.flows(splits)[0, d, k]),
        )
    return torch.where(problem.path_mask, splits.clamp(min=0), 0)


def _split_into_pieces(problem: Problem, splits: Tensor) -> tuple[Problem, Tensor]:
    """Return a weighted program with a demand for each piece of a bandwidth function, and splits.

    The value of a demand is piecewise linear in its rate.  The optimum is the same: slopes fall, so
    that filling the pieces of a demand in order is best.

    Args:
        problem: problem with bandwidth functions, B = 1.
        splits: (1, D, K) share of each demand on each path.
    """
    # (D, C) end and start of each of C pieces, as shares of the demand.
    steps = problem.steps
    assert steps is not None
    piece_end = steps.end[0]
    # Slope of each piece over that of the first one.
    relative_slope = steps.level.expand_as(steps.end[0])
    piece_start = torch.cat([torch.zeros_like(piece_end[:, :1]), piece_end[:, :-1]], 1)
    # (D,) carried share of each demand, and (D, C) its part in each of C pieces.
    carried_share = splits.sum(-1)[0]
    filled_share = (
        (carried_share[:, None] - piece_start).clamp(min=0).minimum(piece_end - piece_start)
    )
    # For each piece, the demands that have it: paths, rate, value of a Gbit/s, and splits.
    piece_paths = list[PathSet]()
    rates = list[Tensor]()
    unit_values = list[Tensor]()
    piece_splits = list[Tensor]()
    for piece in range(piece_end.shape[1]):
        # All demands have the first piece, some have the later ones.
        piece_demands = (
            torch.ones_like(piece_end[:, piece], dtype=torch.bool)
            if piece == 0
            else piece_end[:, piece] > piece_start[:, piece]
        )
        piece_demands = piece_demands.nonzero()[:, 0]
        # The piece of a demand has its paths, and a part of its rate.
        piece_width = (piece_end - piece_start)[piece_demands, piece]
        piece_paths.append(of_demands(problem.paths, piece_demands.cpu().numpy()))
        rates.append(problem.demand[0, piece_demands] * piece_width)
        unit_values.append(
            problem.demand_value[piece_demands] * relative_slope[piece_demands, piece]
        )
        # Splits of the piece: its filled part, in the ratios of the demand's splits.
        piece_share = torch.where(
            piece_width > 0, filled_share[piece_demands, piece] / piece_width.clamp(min=1e-300), 0
        ) / carried_share[piece_demands].clamp(min=1e-300)
        piece_splits.append(splits[0, piece_demands] * piece_share[:, None])
    # Join the pieces as one problem.
    paths = joined(piece_paths)
    piece_problem = dataclasses.replace(
        problem,
        objective=Objective(ObjectiveName.WEIGHTED_FLOW),
        paths=paths,
        demand=torch.cat(rates)[None],
        ops=make_path_ops(paths, problem.ops.device),
        demand_value=torch.cat(unit_values),
        steps=None,
        functions=None,
        classes=None,
    )
    return piece_problem, torch.cat(piece_splits)[None]


def _feasible_flows(problem: Problem, splits: Tensor) -> Tensor:
    """Return the flow (1, D, K) in Gbit/s on each path, scaled down to fit rates and capacities.

    Under protection flows are the reservations, which may exceed the rate.

    Raises:
        InputError: a rate or capacity is violated by more than the tolerance; the message names the
            demand or the link.
    """
    # Flow on each path, and the relative excess of its sum over the demand.
    protection = problem.condition(Protection)
    flows = problem.flows(splits if protection is None else protection.reserved(splits))
    excess = flows.sum(-1) / problem.demand.clamp(min=1e-300) - 1
    if protection is None and bool((excess > TOLERANCE).any()):
        raise _rate_error(problem, flows, int(excess.argmax()), "at most ")
    if not problem.objective.may_shed:
        shortfall = torch.where(problem.routable & (problem.demand > 0), -excess, 0)
        if bool((shortfall > TOLERANCE).any()):
            raise _rate_error(problem, flows, int(shortfall.argmax()), "")
    if not problem.objective.rules.holds_capacity:
        return flows
    # Overload of the links, relative to their capacities; small ones are scaled away.
    load = problem.ops.link_sum(flows)
    overload = problem.program.overload(load)
    if bool((overload > TOLERANCE).any()):
        link = int(overload.argmax())
        raise InputError(
            "proof",
            f"link {problem.topology.link_name(link)}",
            f"a load of at most {float(problem.capacity[0, link])!r} Gbit/s",
            f"{float(load[0, link])!r} Gbit/s",
        )
    # Divide the flow of each path by the largest overload along it.
    return flows / problem.ops.path_max(1 + overload.clamp(min=0))[0].clamp(min=1)


def _rate_error(problem: Problem, flows: Tensor, d: int, prefix: str) -> InputError:
    """Return the error for a demand whose flow is not its rate, or exceeds it.

    Args:
        problem: problem with B = 1.
        flows: (1, D, K) flow on each path, Gbit/s.
        d: index of the demand.
        prefix: "at most " if the flow may be below the rate; else "".
    """
    expected = f"{prefix}{float(problem.demand[0, d])!r} Gbit/s"
    flow = f"{float(flows[0, d].sum())!r} Gbit/s"
    return InputError("proof", _demand_name(problem, d), expected, flow)


def make_claims(
    problem: Problem, splits: Tensor, allocation: Allocation, *, over_all: bool
) -> list[Claim]:
    """Return the claims about an allocation: one for each class or level, else one.

    Args:
        problem: problem with B = 1.
        splits: (1, D, K) share of each demand on each path.
        allocation: allocation with dual prices.
        over_all: whether bounds hold over all paths of the network.
    """
    claimed_prices = (
        torch.zeros_like(problem.capacity) if allocation.prices is None else allocation.prices
    )
    rules = problem.objective.rules
    # A claim for each class or level.
    if rules.is_sequence:
        program_prices = allocation.program_prices
        if problem.classes is not None:
            return _class_claims(
                problem,
                splits,
                claimed_prices if program_prices is None else program_prices.prices[0],
            )
        # Without a proved level, claim the total rate.
        levels = [] if program_prices is None else _level_claims(problem, splits, allocation)
        return levels or [_rate_claim(problem, splits)]
    # A cost, a utilisation or served share, or a value.
    if rules.may_be_infeasible:
        return [_cost_claim(problem, splits, claimed_prices, over_all=over_all)]
    if rules.carries_all:
        return [_ratio_claim(problem, splits, claimed_prices, over_all=over_all)]
    return [_value_claim(problem, splits, claimed_prices, over_all=over_all)]


def _rate_claim(problem: Problem, splits: Tensor) -> Claim:
    """Return the claim of a flow that has no prices.

    Its bound is the value of all demands with a live path.

    Args:
        problem: problem with B = 1.
        splits: (1, D, K) share of each demand on each path.
    """
    flow = problem.flows(splits).sum(-1)[0]
    max_rate = problem.routable_demand[0]
    value, bound = (float((problem.demand_value * rate).sum()) for rate in (flow, max_rate))
    return Claim("value", np.zeros(problem.capacity.shape[1]), value, bound, bound)


def _ratio_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Return the claim of a largest link utilisation, or of a smallest served share.

    Args:
        problem: problem with B = 1.
        splits: (1, D, K) share of each demand on each path.
        prices: (1, E) dual price of each link.
        over_all: whether the bound holds over all paths of the network.
    """
    value = float(problem.value(splits)[0])
    is_utilisation = problem.objective.name == problem.solved.objective.name
    prices = _rescaled_prices(prices)
    bound = float(_bound(problem, prices, over_all=over_all)[0]) if bool(prices.any()) else math.inf
    # Without prices the bound is that of any allocation: utilisation 0, or share 1.
    trivial_bound = 0.0 if is_utilisation else 1.0
    kind = "utilisation" if is_utilisation else "concurrent"
    return Claim(
        kind, _price_array(prices), value, bound if math.isfinite(bound) else trivial_bound
    )


def _value_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Return the claim of a value or of promises.

    Over the candidate paths, prices are scaled by the multiple that proves the tightest bound.

    Args:
        problem: problem with B = 1.
        splits: (1, D, K) share of each demand on each path.
        prices: (1, E) dual price of each link, value per Gbit/s.
        over_all: whether the bound holds over all paths of the network.
    """
    value = float(problem.value(splits)[0])
    prices = usable_prices(problem, prices)
    if not over_all:
        program = problem.rewritten.program
        best_scale = program.bounds_along(prices, PRICE_SCALES)[:, 0].argmin()
        prices = prices * PRICE_SCALES[best_scale]
    bound = float(_bound(problem, prices, over_all=over_all)[0])
    terms = bound + float(problem.capacity_value(prices)[0])
    return Claim(
        "promise" if problem.conditions else "value", _price_array(prices), value, bound, terms
    )


def _cost_claim(problem: Problem, splits: Tensor, prices: Tensor, *, over_all: bool) -> Claim:
    """Return the claim of a cost, with the smallest served share of a demand as its name.

    Over the candidate paths, prices are scaled by the multiple that proves the tightest bound;
    prices of 0 replace those that prove nothing beyond the link costs.

    Args:
        problem: problem with B = 1 under least_cost.
        splits: (1, D, K) share of each demand on each path.
        prices: (1, E) dual price of each link, cost per Gbit/s.
        over_all: whether the bound holds over all paths of the network.
    """
    prices = finite_prices(prices)
    flows = _feasible_flows(problem, splits)
    if not over_all:
        scales = torch.cat([PRICE_SCALES.new_zeros(1), PRICE_SCALES])
        best_scale = problem.program.bounds_along(prices, scales)[:, 0].argmin()
        prices = prices * scales[best_scale]
    bound = float(_bound(problem, prices, over_all=over_all)[0])
    bound_without_prices = float(_bound(problem, 0 * prices, over_all=over_all)[0])
    # Drop prices whose bound is no tighter than that of the costs alone.
    if bound <= bound_without_prices:
        prices = 0 * prices
        bound = bound_without_prices
    # Smallest served share of the demands with a live path.
    served_share = flows.sum(-1) / problem.demand.clamp(min=1e-300)
    must_be_served = problem.routable & (problem.demand > 0)
    min_served_share = (
        min(1.0, float(torch.where(must_be_served, served_share, 1).min()))
        if bool(must_be_served.any())
        else 1.0
    )
    value = -float((flows * problem.path_value).sum())
    terms = bound + 2 * float(problem.capacity_value(prices)[0])
    return Claim("cost", _price_array(prices), value, bound, terms, repr(min_served_share))


def _rescaled_prices(prices: Tensor) -> Tensor:
    """Return prices (1, E) scaled so that the largest is 2^40.

    This is for programs whose bound does not depend on the scale of the prices; large prices lose
    less by rounding.
    """
    prices = finite_prices(prices)
    largest = prices.amax()
    return prices * (_LARGEST_PRICE / largest) if largest > 0 else prices


def _bound(problem: Problem, prices: Tensor, *, over_all: bool) -> Tensor:
    """Return the bound (1,) that prices (1, E) prove, over all paths or the candidate paths."""
    if over_all:
        return all_paths_bound(problem, prices)
    program = problem.rewritten.program
    return problem.objective.rules.from_score(problem, program.bound(prices))


def _price_array(prices: Tensor) -> FloatArray:
    """Return prices (1, E) as a NumPy array (E,)."""
    row: FloatArray = prices.reshape(-1).cpu().numpy().astype(np.float64)
    return row


def _class_claims(problem: Problem, splits: Tensor, prices: Tensor) -> list[Claim]:
    """Return a claim for each priority class, the highest class first.

    The multiplier of a higher class is the path price of the most expensive demand needed to carry
    its flow.  With link capacities c, link prices y, and the price of a demand's cheapest path, the
    bound is c' y + sum over the class of demand * max(0, 1 - price) + sum over the higher classes
    of (demand * max(0, multiplier - price) - multiplier * carried flow).

    Args:
        problem: problem with C classes and B = 1.
        splits: (1, D, K) share of each demand on each path.
        prices: (C, E) dual prices of each class, or (1, E) for all.
    """
    assert problem.classes is not None
    carried_flow = problem.flows(splits).sum(-1)[0]
    claims = list[Claim]()
    names = _class_names(problem)
    for class_index, name in enumerate(names):
        # Prices of the class, price of the cheapest path of each demand, and the bound of the class
        # without the higher classes.
        class_prices = finite_prices(prices[min(class_index, len(prices) - 1)][None])
        cheapest_path_price = problem.cheapest_path_cost(
            problem.ops.path_sum(class_prices), unroutable=math.inf
        )[0]
        capacity_value = float(problem.capacity_value(class_prices)[0])
        demands = problem.classes.rows(class_index)
        value = float(carried_flow[demands].sum())
        profit = float(
            (problem.demand[0, demands] * (1 - cheapest_path_price[demands]).clamp(min=0)).sum()
        )
        bound = capacity_value + profit
        terms = capacity_value + profit
        # Multipliers of the higher classes, and their terms of the bound.
        multipliers = {}
        for upper_index in range(class_index):
            demands = problem.classes.rows(upper_index)
            demand = problem.demand[0, demands]
            upper_path_price = cheapest_path_price[demands]
            upper_flow = float(carried_flow[demands].sum())
            # Number of the cheapest demands that together reach the carried flow.
            price_order = upper_path_price.argsort()
            num_needed = int((demand[price_order].cumsum(0) < upper_flow).sum())
            multiplier = (
                float(upper_path_price[price_order[min(num_needed, len(price_order) - 1)]])
                if upper_flow
                else 0.0
            )
            # Round down to a multiple of 2^-60, as the proof writes it.
            multiplier = (
                int(multiplier * _UNITS_PER_ONE) / _UNITS_PER_ONE
                if math.isfinite(multiplier)
                else 0.0
            )
            upper_profit = float((demand * (multiplier - upper_path_price).clamp(min=0)).sum())
            bound = bound + upper_profit - multiplier * upper_flow
            terms = terms + upper_profit + multiplier * upper_flow
            multipliers[names[upper_index]] = multiplier
        claims.append(
            Claim(
                "class",
                _price_array(class_prices),
                value,
                max(bound, value),
                terms,
                name,
                multipliers,
            )
        )
    return claims


def _level_claims(problem: Problem, splits: Tensor, allocation: Allocation) -> list[Claim]:
    """Return a claim for each fair level whose growth the prices of its program bound.

    Args:
        problem: problem under max_min with B = 1.
        splits: (1, D, K) share of each demand on each path.
        allocation: allocation with the prices of each level.
    """
    assert allocation.program_prices is not None
    # (D,) rates in Gbit/s, and weights.
    rate = problem.flows(splits).sum(-1)[0]
    weight = problem.demand_value
    claims = list[Claim]()
    for level, prices in allocation.program_prices.of_row(0):
        # Level, lowered by a margin for rounding, and price of each demand's cheapest path.
        level *= 1 - _LEVEL_MARGIN
        level_prices = _rescaled_prices(prices[None].to(problem.capacity))
        cheapest_path_price = problem.cheapest_path_cost(problem.ops.path_sum(level_prices))[0]
        # Demands at the level or above it, and the growth that the prices allow them.
        is_in_level = rate >= level * weight
        priced_capacity = float(problem.capacity_value(level_prices)[0])
        growth = growth_from(
            cheapest_path_price,
            priced_capacity,
            rate,
            is_in_level,
            level * weight,
            problem.demand[0],
        )
        if math.isfinite(growth) and level > 0:
            terms = _LEVEL_MARGIN_FACTOR * max(1.0, growth)
            name = np.format_float_positional(level)
            claims.append(Claim("level", _price_array(level_prices), 1.0, growth, terms, name))
    return claims


def _class_names(problem: Problem) -> list[str]:
    """Return the names of the classes in the notation of a proof, with spaces quoted as %20."""
    return (
        [] if problem.classes is None else [quote(name, safe="") for name in problem.classes.names]
    )


def _network_rows(problem: Problem) -> list[dict[str, object]]:
    """Return a row of the network's file for each link: its ends, capacity, and cost if any.

    Numbers are shortest decimals.
    """
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


def _matrix_rows(problem: Problem) -> list[dict[str, object]]:
    """Return a row of the matrix's file for each demand: its ends, rate, and weight or class.

    Numbers are shortest decimals; weights are left out if all are 1.
    """
    names = problem.topology.node_names
    rules = problem.objective.rules
    rows: list[dict[str, object]] = [
        {"source": names[s], "target": names[t], "rate": repr(abs(rate))}
        for (s, t), rate in zip(
            problem.paths.pairs.tolist(), problem.demand[0].tolist(), strict=True
        )
    ]
    # Classes and programs that carry all demand have no weights.
    is_weighted = (
        problem.classes is None
        and not rules.carries_all
        and bool((problem.demand_value != 1).any())
    )
    if is_weighted:
        rows = [
            {**row, "weight": repr(weight)}
            for row, weight in zip(rows, problem.demand_value.tolist(), strict=True)
        ]
    if problem.classes is not None:
        demand_class = np.array(problem.classes.names, dtype=object)[problem.classes.of_demand]
        rows = [{**row, "class": name} for row, name in zip(rows, demand_class, strict=True)]
    return rows


def _write_table(
    file: Path, rows: Sequence[dict[str, object]], columns: Sequence[str] = ()
) -> None:
    """Write rows as a CSV file with a header.

    Args:
        file: file to write.
        rows: value of each column, by its name.
        columns: names of the columns; empty for those of the first row.
    """
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(columns or rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_flows(
    file: Path,
    inputs: Sequence[Path],
    problem: Problem,
    flows: Tensor,
    claims: Sequence[Claim],
    margin_bits: int,
    carries_all: bool,
    over_all: bool,
    multipliers: Sequence[Sequence[str]] | None,
) -> None:
    """Write the proof: the hashes of its inputs, the claims, and a line for each demand.

    Args:
        file: file to write, compressed if it ends with .gz.
        inputs: files of network and matrix, for their hashes.
        problem: problem with B = 1.
        flows: (D, K) flow on each path, Gbit/s.
        claims: claims about the flows.
        margin_bits: s; flows are multiplied by 1 - 2^-s, unless all demand is carried.
        carries_all: whether all demand must be carried.
        over_all: whether bounds hold over all paths; otherwise all candidate paths are listed.
        multipliers: for each demand words ``@GROUP:MULTIPLIER``; None without promises.
    """
    # Lines of the demands, and the hash of the listed paths.
    flow_lines = io.StringIO()
    path_list_hash = hashlib.sha256()
    for line, path_list in _demand_lines(
        problem, flows, 0 if carries_all else margin_bits, carries_all, over_all, multipliers
    ):
        flow_lines.write(line)
        path_list_hash.update(path_list)
    # The header has the hashes of the files, and the claims.
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in inputs]
    header = ["teal-proof 1", f"network {hashes[0]}", f"matrix {hashes[1]}"]
    header.append("paths all" if over_all else f"paths listed {path_list_hash.hexdigest()}")
    for claim in claims:
        header += claim.lines(margin_bits)
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("\n".join([*header, "flows", ""]))
        stream.write(flow_lines.getvalue())
        stream.write("end\n")


def _demand_lines(
    problem: Problem,
    flows: Tensor,
    margin_bits: int,
    carries_all: bool,
    over_all: bool,
    multipliers: Sequence[Sequence[str]] | None,
) -> Iterator[tuple[str, bytes]]:
    """Yield two texts for each demand: its line in the proof, and its line in the list of paths.

    The first one has its flows; the list of paths is not written, only hashed.

    Args:
        problem: problem with B = 1.
        flows: (D, K) flow on each path, Gbit/s.
        margin_bits: s; flows are multiplied by 1 - 2^-s; 0 to keep them.
        carries_all: whether all demand must be carried.
        over_all: whether bounds hold over all paths, so that only paths with flow are listed.
        multipliers: for each demand words ``@GROUP:MULTIPLIER``; None without promises.
    """
    is_listed = problem.path_mask[0].cpu().numpy()
    if over_all:
        is_listed = is_listed & (flows.cpu().numpy() > 0)
    # Listed paths by demand, their links (CSR), and their flows in multiples of 2^-60 Gbit/s.
    demand_index, path_index = np.nonzero(is_listed)
    path_links_csr = links_along(problem.topology, problem.paths, demand_index, path_index)
    link_text = [str(i) for i in range(problem.topology.num_links)]
    path_starts = path_links_csr.link_starts.tolist()
    links = path_links_csr.links
    unit_factor = (1 - 2.0**-margin_bits if margin_bits else 1.0) * _UNITS_PER_ONE
    flow_units = [
        int(x) for x in (flows.cpu().numpy()[demand_index, path_index] * unit_factor).tolist()
    ]
    # Position of each demand's first listed path, and rates in multiples of 2^-60 Gbit/s.
    demand_starts = np.searchsorted(demand_index, np.arange(len(is_listed) + 1)).tolist()
    rates_in_units: AnyArray = problem.demand[0].cpu().numpy() * _UNITS_PER_ONE
    for d, rate in enumerate(rates_in_units.tolist()):
        first_path = demand_starts[d]
        end_path = demand_starts[d + 1]
        path_units = flow_units[first_path:end_path]
        if carries_all and path_units and rate > 0:
            # Add the shortfall by rounding to the largest flow.  One unit in 2^52 more than the
            # rate is at least the shortest decimal that the matrix file has for it.
            shortfall = int(rate) + (int(rate) >> 52) + 1 - sum(path_units)
            path_units[path_units.index(max(path_units))] += max(0, shortfall)
        # Links of each path, and the line: demand, multipliers, and flow:links of each path.
        path_texts = [
            ",".join([link_text[i] for i in links[path_starts[j] : path_starts[j + 1]].tolist()])
            for j in range(first_path, end_path)
        ]
        flow_words = [f"{flow}:{path}" for flow, path in zip(path_units, path_texts, strict=True)]
        multiplier_words = multipliers[d] if multipliers is not None else ()
        yield (
            " ".join([str(d), *multiplier_words, *flow_words]) + "\n",
            (" ".join([str(d), *path_texts]) + "\n").encode(),
        )
