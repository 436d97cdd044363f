"""Protected flows: guarantees under the failure of any one group of links.

Routers react by local rescaling alone.
As in FFC (Liu et al., "Traffic engineering with forward fault correction", SIGCOMM 2014), a[d, k]
Gbit/s are reserved on path k of demand d, and b[d] Gbit/s of the demand are guaranteed.  With v[d]
the value of a Gbit/s, c[e] the capacity of link e, and L(d, g) the paths of d that survive the
failure of group g, the program is

    max sum_d v[d] b[d]
    s.t.  sum over k in L(d, g) of a[d, k] >= b[d] for every group g, and for no failure,
    load[e](a) <= c[e],  b[d] <= demand[d],  a >= 0.

The router sends b[d] over its live paths in the ratio of the reservations: no path ever carries
more than its reservation, so that no link is overloaded, whatever group fails, and only the router
of the demand needs to detect the failure. Splits are the nominal flow without failures; the least
reservations for splits s[d, k] are

    a[d, k] = demand[d] s[d, k] * (sum_k s) / min over g of (sum of s over L(d, g)),

which the validator computes. A demand none of whose paths survive some group has no guarantee.

The reservations for one guaranteed Gbit/s form the polyhedron {a >= 0: sum over L of a >= 1 for
every L}. Its vertices are bundles of paths (two disjoint paths with 1 each, three with 1/2 each,
...); every minimal reservation is a convex combination of them. So the program is value
maximisation over bundles instead of paths, and bounds, engines and projection apply unchanged. If
paths have already failed, bundles that use them are not live; the other bundles are the vertices of
the remaining polyhedron. Main class: :class:`Protection`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from teal.errors import InputError
from teal.objectives import Objective, ObjectiveName
from teal.option import Option
from teal.pathops import PathOps
from teal.pathops.columns import BundleOps
from teal.problem.condition import Condition, ConditionRequest, LinkGroups, Rewritten
from teal.problem.program import Program
from teal.runtime.arrays import BoolArray, FloatArray
from teal.runtime.shapes import Bool, Float

# Largest number of protected paths of a demand: vertices are enumerated, and families of path sets
# are bits of 64-bit integers.
MAX_PATHS = 6
# Largest number of node pairs of a request; more would take the engine minutes.
_MAX_PAIRS = 100_000
# Tolerance of the constraints of a vertex, for rounding.
_VERTEX_TOLERANCE = 1e-9
# Share of a demand's splits up to which the surviving splits are rounding.
_MIN_SURVIVING_SHARE = 1e-9
# Vertices are compared after rounding to this many decimals: coordinates are ratios of small
# integers.
_VERTEX_DIGITS = 9
# Largest number of systems of equations in memory at once.
_MAX_BASES_PER_CHUNK = 20_000
# Largest number of groups whose failed paths are in memory at once.
_MAX_GROUPS_PER_CHUNK = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Protection(Condition):
    """Protection against the failure of link groups, by the surviving paths of each demand.

    Attributes:
        groups: link indices of each group.
        sets: (D, M, K) whether each path belongs to set m.  A set has the paths of a demand that
            survive some group; only minimal sets are kept, padded to M with sets of all paths.
        bundles: (D, J, K) Gbit/s reserved on each path for one guaranteed Gbit/s: the vertices of
            the reservations, padded to J with 0.
    """

    groups: tuple[tuple[int, ...], ...]
    sets: Bool[Tensor, "D M K"]
    bundles: Float[Tensor, "D J K"]
    name: ClassVar[str] = "protection"
    changes_columns: ClassVar[bool] = True
    # The bundles that reserved a path are unknown.
    splits_determine_shares: ClassVar[bool] = False
    allows_rounding: ClassVar[bool] = False
    option: ClassVar[Option | None] = Option(
        "protect",
        "Guarantee all flows under the failure of any one cable, or group of the network: routers "
        "only rescale traffic to surviving paths.",
        words=("cables", "groups"),
    )

    @classmethod
    def prepare(
        cls, network: PathOps, num_links: int, groups: Mapping[str, LinkGroups]
    ) -> dict[str, Any]:
        """Return the protection for each word of the option: "cables" or "groups".

        Args:
            network: operations over the candidate paths of all node pairs.
            num_links: E.
            groups: link groups that fail together, by the word of the option.

        Raises:
            InputError: too many node pairs.
        """
        if len(network.mask) > _MAX_PAIRS:
            raise InputError(
                "protect", "", f"at most {_MAX_PAIRS:,} node pairs", f"{len(network.mask):,}"
            )
        return {word: cls.of(network, num_links, links) for word, links in groups.items() if links}

    @classmethod
    @override
    def from_request(cls, request: ConditionRequest) -> Protection:
        """Return the protection that was computed for the network, repeated for each class of the
        request; raise InputError for a network without link groups or for latency limits.
        """
        if request.value not in request.network_data:
            raise InputError.invalid(
                "protect", "", "the network has no link groups", "register it with groups"
            )
        if request.has_latency_limits:
            raise InputError.invalid(
                "protect",
                "",
                "protection does not support latency limits",
                "drop latency_limits_ms",
            )
        protection: Protection = request.network_data[request.value]
        return protection if request.num_classes == 1 else protection.repeated(request.num_classes)

    @classmethod
    def of(cls, ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> Protection:
        """Compute the surviving path sets of each demand, and the bundles.

        Of a demand with more than :data:`MAX_PATHS` paths, a selection is protected; the other
        paths are in no set, so that traffic on them counts as lost.

        Args:
            ops: operations over D demands with at most K paths each.
            num_links: E.
            groups: link indices of each group of links that fail together.

        Raises:
            InputError: an unknown link.
        """
        for index, group in enumerate(groups):
            if any(not 0 <= link < num_links for link in group):
                expected = f"link indices, 0 to {num_links - 1}"
                raise InputError("protection", f"groups[{index}]", expected, list(group))
        # A family is the set of a demand's surviving path sets, as bits.  Demands with the same
        # family share their vertices.
        columns = chosen_columns(ops, num_links, groups)
        num_columns = columns.shape[1]
        families, family_index = np.unique(
            _survivor_families(ops, num_links, groups, columns), return_inverse=True
        )
        family_sets = [_minimal_sets(_family_sets(int(family), num_columns)) for family in families]
        family_vertices = [vertices(one_family_sets) for one_family_sets in family_sets]
        # Pad sets and bundles to the largest number.
        sets = np.ones((len(families), max([1, *map(len, family_sets)]), num_columns), dtype=bool)
        bundles = np.zeros((len(families), max([1, *map(len, family_vertices)]), num_columns))
        for index, (one_family_sets, one_family_vertices) in enumerate(
            zip(family_sets, family_vertices, strict=True)
        ):
            sets[index, : len(one_family_sets)] = one_family_sets
            bundles[index, : len(one_family_vertices)] = one_family_vertices
        num_paths = ops.mask.shape[1]
        return cls(
            tuple(tuple(group) for group in groups),
            torch.from_numpy(_scatter_columns(sets[family_index], columns, num_paths)).to(
                ops.device
            ),
            torch.from_numpy(_scatter_columns(bundles[family_index], columns, num_paths)).to(
                ops.device
            ),
        )

    @override
    def unmet_requirement(self, objective: Objective, other_conditions: Sequence[Condition]) -> str:
        """Return what protection requires of the objective and the other conditions; "" if they
        meet it.
        """
        if not objective.rules.allows_protection:
            supported_objectives = [
                name for name in ObjectiveName if Objective(name).rules.allows_protection
            ]
            return f"{', '.join(supported_objectives)}, not {objective.name}"
        # Other conditions limit the flows that are sent, whereas rows hold reservations.
        return (
            f"no further condition, such as {other_conditions[0].name}" if other_conditions else ""
        )

    def rewrite(self, program: Program) -> Rewritten:
        """Rewrite a program over bundles of paths instead of paths.

        A bundle is a set of paths that carries a guaranteed flow together: it reserves capacity on
        each of them, so that the flow survives the failure of any group.  Its column is the share
        of the demand that it guarantees.  The splits of a demand divide its guaranteed flow among
        its paths in proportion to their reservations.
        """
        bundles = BundleOps(program.columns, self.bundles)
        value = program.value.amax(-1, keepdim=True) * bundles.mask

        def splits(bundle_shares: Tensor) -> Tensor:
            reserved = bundles.on_paths(bundle_shares)
            guaranteed_share = bundle_shares.sum(-1, keepdim=True)
            return reserved * (guaranteed_share / reserved.sum(-1, keepdim=True).clamp(min=1e-30))

        # Bundles cannot be recovered from splits: start from 0.
        def shares(splits: Tensor) -> Tensor:
            return splits.new_zeros(len(splits), *bundles.mask.shape)

        return Rewritten(dataclasses.replace(program, columns=bundles, value=value), splits, shares)

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """Return the violation (B,): the largest relative overload of a link by the reservations.

        If no path of a demand survives some group, its share of the demand counts as well.

        Args:
            program: program over paths, in float64.
            splits: (B, D, K) guaranteed share of each demand on each path.
        """
        live_splits = torch.where(program.live, splits, 0)
        surviving_share = self.surviving_fraction(live_splits)
        # (B, D) demands with traffic but without a surviving path under some group.
        is_unprotected = surviving_share <= torch.where(
            live_splits.sum(-1) > 0, _MIN_SURVIVING_SHARE * live_splits.sum(-1), -1
        )
        reserved = torch.where(
            is_unprotected[..., None], splits, self.reserved(live_splits, surviving_share)
        )
        overload = program.overload(program.loads(reserved)).amax(1).clamp(min=0)
        return torch.maximum(overload, torch.where(is_unprotected, splits.sum(-1), 0).amax(1))

    @override
    def on_paths(self, ops: PathOps, num_links: int) -> Protection:
        return Protection.of(ops, num_links, self.groups)

    def repeated(self, count: int) -> Protection:
        """Return the protection of ``count`` copies of the demands, one block after the other."""
        return Protection(
            self.groups, self.sets.repeat(count, 1, 1), self.bundles.repeat(count, 1, 1)
        )

    def unprotected(self, program: Program) -> Bool[Tensor, "B D"]:
        """Return for each demand (B, D) whether no reservation can protect it: no
        bundle is live.
        """
        return ~self.rewrite(program).program.live.any(-1)

    def reserved(
        self, splits: Tensor, surviving_fraction: Tensor | None = None
    ) -> Float[Tensor, "B D K"]:
        """Return the smallest reservations (B, D, K) that guarantee splits, as shares of the
        demand.

        With s the sum of a demand's splits and r the smallest sum of its surviving splits under any
        group, they are split * s / r; infinite where no path survives some group.

        Args:
            splits: (B, D, K) guaranteed share of each demand on each path.
            surviving_fraction: (B, D) r of each demand; None to compute it.
        """
        total_share = splits.sum(-1)
        return (
            splits
            * torch.where(
                total_share > 0,
                total_share
                / (
                    self.surviving_fraction(splits)
                    if surviving_fraction is None
                    else surviving_fraction
                ),
                1,
            )[..., None]
        )

    def surviving_fraction(self, splits: Tensor) -> Float[Tensor, "B D"]:
        """Return the smallest sum (B, D) of a demand's splits on surviving paths, over all groups.

        This is the share before routers rescale traffic to the surviving paths.  It is computed one
        matrix at a time, to limit memory.

        Args:
            splits: (B, D, K) share of each demand on each path.
        """
        rows = [
            torch.where(self.sets, row_splits[:, None], 0).sum(-1).amin(-1) for row_splits in splits
        ]
        return torch.stack(rows) if rows else splits.sum(-1)


def failed_paths(ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> BoolArray:
    """Return for each of G groups whether each path crosses one of its links, (G, D, K).

    Args:
        ops: operations over D demands with at most K paths each.
        num_links: E.
        groups: link indices of each group.
    """
    is_in_group = torch.zeros(len(groups), num_links, dtype=torch.float64)
    for index, links in enumerate(groups):
        is_in_group[index, list(links)] = 1
    crosses_group: BoolArray = (ops.path_max(is_in_group.to(ops.device))[0] > 0).cpu().numpy()
    return crosses_group


def chosen_columns(ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the path indices (D, at most MAX_PATHS) of the protected paths, ascending.

    Greedy cover: each step selects the path that survives most of the groups that no selected path
    survives; ties go to the first path, since paths are sorted by the flow they carry.

    Args:
        ops: operations over D demands with at most K paths each.
        num_links: E.
        groups: link indices of each group.
    """
    exists = ops.mask.cpu().numpy()
    num_demands, num_paths = exists.shape
    columns = np.tile(np.arange(min(num_paths, MAX_PATHS)), (num_demands, 1))
    # Only demands with more paths need a selection.
    large_demands = np.flatnonzero(exists.sum(1) > MAX_PATHS)
    if not len(large_demands):
        return columns
    chunk_starts = range(0, len(groups), _MAX_GROUPS_PER_CHUNK)
    failed_chunks = [
        failed_paths(ops, num_links, groups[first : first + _MAX_GROUPS_PER_CHUNK])[
            :, large_demands
        ]
        for first in chunk_starts
    ]
    # (groups + 1, large demands, K) whether each path survives each group; the last group is empty.
    survives = exists[large_demands] & ~np.concatenate(
        [*failed_chunks, np.zeros((1, len(large_demands), num_paths), dtype=bool)]
    )
    # (groups + 1, large demands) groups that no selected path survives; (large demands, K)
    # selection.
    is_unprotected = np.ones(survives.shape[:2], dtype=bool)
    is_chosen = np.zeros((len(large_demands), num_paths), dtype=bool)
    # Greedy cover: select the path that survives most groups still without a selected survivor.
    rows = np.arange(len(large_demands))
    for _ in range(MAX_PATHS):
        num_protected = np.where(
            is_chosen | ~exists[large_demands], -1, (survives & is_unprotected[..., None]).sum(0)
        )
        best_path = num_protected.argmax(1)
        is_chosen[rows, best_path] = True
        is_unprotected &= ~survives[:, rows, best_path]
    columns[large_demands] = np.argsort(~is_chosen, axis=1, kind="stable")[:, :MAX_PATHS]
    return columns


def _scatter_columns(values: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
    """Scatter values (D, M, n) of some columns to all ``width`` columns, (D, M, width).

    Args:
        values: (D, M, n) values of the given columns.
        columns: (D, n) indices of these columns for each demand.
        width: number of columns of the result, which is 0 in the others.
    """
    scattered = np.zeros((*values.shape[:2], width), dtype=values.dtype)
    np.put_along_axis(scattered, columns[:, None], values, 2)
    return scattered


def _survivor_families(
    ops: PathOps, num_links: int, groups: Sequence[Sequence[int]], columns: np.ndarray
) -> np.ndarray:
    """Return the family (D,) of surviving path sets of each demand, as bits of 64-bit integers.

    A path set is a code c whose bit k is set if path k is in the set.  Bit c of a family is set if
    exactly the paths of c survive some group, or no failure.

    Args:
        ops: operations over the paths.
        num_links: E.
        groups: link indices of each group.
        columns: (D, n) protected paths, n <= 6.
    """
    exists = np.take_along_axis(ops.mask.cpu().numpy(), columns, 1)

    # Families with the single code of each demand's surviving paths (..., n).
    def family_bits(surviving: BoolArray) -> np.ndarray:
        # Bit k of a code: path k survives.
        codes = np.zeros(surviving.shape[:-1], np.uint8)
        for k in range(surviving.shape[-1]):
            codes |= surviving[..., k].view(np.uint8) << k
        return np.left_shift(np.uint64(1), np.arange(1 << MAX_PATHS, dtype=np.uint64))[codes]

    families = family_bits(exists)
    for first in range(0, len(groups), _MAX_GROUPS_PER_CHUNK):
        is_failed = failed_paths(ops, num_links, groups[first : first + _MAX_GROUPS_PER_CHUNK])
        is_failed = np.take_along_axis(
            is_failed, np.broadcast_to(columns, (len(is_failed), *columns.shape)), 2
        )
        families |= np.bitwise_or.reduce(family_bits(exists & ~is_failed), axis=0)
    return families


def _family_sets(family: int, width: int) -> BoolArray:
    """Return the path sets (m, width) of a family, as booleans.

    Args:
        family: bits of the family; bit c is set if it contains the path set with code c.
        width: number of paths; bit k of a code c is set if path k is in the set.
    """
    codes = [code for code in range(1 << width) if family >> code & 1]
    return np.array(
        [[bool(code >> k & 1) for k in range(width)] for code in codes], dtype=bool
    ).reshape(-1, width)


def _minimal_sets(sets: BoolArray) -> BoolArray:
    """Return the sets (m, K) that contain no other set; others give redundant constraints."""
    return sets[
        [
            not any((subset <= candidate).all() and (subset < candidate).any() for subset in sets)
            for candidate in sets
        ]
    ]


def vertices(sets: BoolArray) -> FloatArray:
    """Return all vertices (J, K) of {a >= 0: sum of a over each set >= 1}; none if a set is empty.

    Args:
        sets: (m, K) whether each path belongs to each set.
    """
    return _vertices(sets.astype(bool).tobytes(), sets.shape[1])


@functools.lru_cache(maxsize=4096)
def _vertices(set_bytes: bytes, width: int) -> FloatArray:
    """Return all vertices (J, width) of {a >= 0: sum of a over each set >= 1}, cached by the sets.

    Args:
        set_bytes: bytes of the boolean array (m, width) of the sets, which many demands share.
        width: number of paths.
    """
    sets = np.frombuffer(set_bytes, dtype=bool).reshape(-1, width)
    if not len(sets) or not sets.any(1).all():
        return np.zeros((0, width))
    # Constraints rows a >= 1 and a >= 0 over the paths that belong to some set.
    used_paths = np.flatnonzero(sets.any(0))
    set_rows = _minimal_sets(np.unique(sets[:, used_paths], axis=0)).astype(float)
    constraint_rows = np.vstack([set_rows, np.eye(len(used_paths))])
    right_sides = np.concatenate([np.ones(len(set_rows)), np.zeros(len(used_paths))])
    # Basic solutions: solve for each choice of as many tight constraints as paths; keep the
    # feasible ones.
    vertex_chunks = [np.zeros((0, len(used_paths)))]
    combinations = itertools.combinations(range(len(constraint_rows)), len(used_paths))
    while len(
        basis_rows := np.array(
            list(itertools.islice(combinations, _MAX_BASES_PER_CHUNK)), dtype=np.int64
        )
    ):
        bases = constraint_rows[basis_rows]
        is_regular = np.abs(np.linalg.det(bases)) >= _VERTEX_TOLERANCE
        basic_solutions = np.linalg.solve(
            bases[is_regular], right_sides[basis_rows[is_regular]][..., None]
        )[..., 0]
        is_feasible = (basic_solutions >= -_VERTEX_TOLERANCE).all(1) & (
            basic_solutions @ set_rows.T >= 1 - _VERTEX_TOLERANCE
        ).all(1)
        vertex_chunks.append(np.unique(basic_solutions[is_feasible].round(_VERTEX_DIGITS), axis=0))
    vertices_of_used = np.maximum(np.unique(np.concatenate(vertex_chunks), axis=0), 0)
    # Rescale rounded vertices so that the tightest constraint is exact.
    vertices_of_used /= (vertices_of_used @ set_rows.T).min(1, keepdims=True)
    # Pad with unused paths.
    vertices_of_all = np.zeros((len(vertices_of_used), width))
    vertices_of_all[:, used_paths] = vertices_of_used
    vertices_of_all.setflags(write=False)
    return vertices_of_all
