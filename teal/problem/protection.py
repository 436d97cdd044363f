r"""Promises that hold under the failure of any one group of links, by local rescaling alone.

As in FFC (Liu et al., "Traffic engineering with forward fault correction", SIGCOMM 2014): a[d, k]
Gbit/s are reserved on the paths of a demand, of which b[d] are promised; with L(d, g) the paths of
d that survive the failure of group g,

    max sum_d v[d] b[d]
    s.t.  sum over k in L(d, g) of a[d, k] >= b[d] for every group g, and for no failure,
    load[e](a) <= c[e],  b[d] <= demand[d],  a >= 0.

The router sends b[d] over its live paths in the ratio of the reservations: then no path ever
carries more than is reserved on it, so that no link overflows, whatever group fails, and only the
router of the demand need know of it. Splits are what is sent while nothing fails; the least
reservations for splits s[d, k] are

    a[d, k] = demand[d] s[d, k] * (sum_k s) / min over g of (sum of s over L(d, g)),

which the validator computes.  A demand none of whose paths survive some group can be promised
nothing.

The reservations for one promised Gbit/s form the polyhedron {a >= 0: sum over L of a >= 1 for every
L}.  Its vertices are bundles of paths (two disjoint paths with 1 each, three with 1/2 each, ...);
every reservation is a sum of them.  So the program is one of value maximisation over bundles in the
place of paths, and bounds, engines and projection serve it as they are.  Of paths that have failed
already, the bundles that use them are not live; the others still are the vertices of what is left.
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

# of a demand that carry promises: vertices are enumerated, and sets of paths are bits of 64-bit
# numbers
MAX_PATHS = 6
_MAX_PAIRS = 100_000  # of nodes, for requests: promises for more would take the engine minutes
_VERTEX_TOLERANCE = 1e-9  # by which a vertex may miss a constraint, for rounding
_NOTHING_LEFT = (
    1e-9  # share of a demand's splits up to which those that a group leaves are rounding
)
# Digits after the point, by which vertices are compared: their coordinates are ratios of small
# whole numbers.
_VERTEX_DIGITS = 9
_BASES_AT_ONCE = 20_000  # systems of equations in memory at once
_GROUPS_AT_ONCE = 16  # whose failed paths are in memory at once


@dataclasses.dataclass(frozen=True, eq=False)
class Protection(Condition):
    """The groups that promises survive, as what is left of each demand's paths.

    Attributes:
        groups: numbers of the links of each.
        sets: (D, M, K) true for the paths of set m, one of those that groups may leave of a
            demand's paths; sets that contain another one are left out, and those that are missing
            are all paths.
        bundles: (D, J, K) vertices, Gbit/s reserved on each path for one promised Gbit/s; 0 for
            those that are missing.
    """

    groups: tuple[tuple[int, ...], ...]
    sets: Bool[Tensor, "D M K"]
    bundles: Float[Tensor, "D J K"]
    name: ClassVar[str] = "protection"
    changes_columns: ClassVar[bool] = True
    splits_determine_shares: ClassVar[bool] = False  # which bundles reserved a path is not known
    allows_rounding: ClassVar[bool] = False
    option: ClassVar[Option | None] = Option(
        "protect",
        "Flows are promises that survive the failure of any one cable, or group of the network, if "
        "each router just "
        "sends over the paths that are left.",
        words=("cables", "groups"),
    )

    @classmethod
    def prepare(
        cls, network: PathOps, num_links: int, groups: Mapping[str, LinkGroups]
    ) -> dict[str, Any]:
        """The promises of each word (:meth:`Condition.prepare`)."""
        if len(network.mask) > _MAX_PAIRS:
            raise InputError(
                "protect", "", f"at most {_MAX_PAIRS:,} pairs of nodes", len(network.mask)
            )
        return {word: cls.of(network, num_links, links) for word, links in groups.items() if links}

    @classmethod
    @override
    def asked(cls, request: ConditionRequest) -> Protection:
        if request.value not in request.network_data:
            raise InputError(
                "protect", "", "a network that was registered with groups", "one without groups"
            )
        if request.has_latency_limits:
            raise InputError("protect", "", "no latency_limits_ms", "limits")
        whole: Protection = request.network_data[request.value]
        return whole if request.num_classes == 1 else whole.repeated(request.num_classes)

    @classmethod
    def of(cls, ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> Protection:
        """Find what each group leaves of the paths, and the bundles.

        Of a demand with more than :data:`MAX_PATHS` paths so many carry promises
        (:func:`chosen_columns`); the others are in no set, so that what is sent over them counts as
        lost.

        Args:
            ops: over the paths.
            num_links: E.
            groups: numbers of the links of each.

        Raises:
            InputError: an unknown link.
        """
        for number, group in enumerate(groups):
            if any(not 0 <= link < num_links for link in group):
                expected = f"numbers of links, 0 to {num_links - 1}"
                raise InputError("protection", f"groups[{number}]", expected, list(group))
        columns = chosen_columns(ops, num_links, groups)
        width = columns.shape[1]
        families, member = np.unique(
            _families(ops, num_links, groups, columns), return_inverse=True
        )
        families_sets = [_smallest(_sets_of(int(family), width)) for family in families]
        corners = [vertices(of_family) for of_family in families_sets]
        sets = np.ones((len(families), max([1, *map(len, families_sets)]), width), dtype=bool)
        bundles = np.zeros((len(families), max([1, *map(len, corners)]), width))
        for number, (of_family, own_corners) in enumerate(zip(families_sets, corners, strict=True)):
            sets[number, : len(of_family)] = of_family
            bundles[number, : len(own_corners)] = own_corners
        whole = ops.mask.shape[1]
        return cls(
            tuple(tuple(group) for group in groups),
            torch.from_numpy(_in_columns(sets[member], columns, whole)).to(ops.device),
            torch.from_numpy(_in_columns(bundles[member], columns, whole)).to(ops.device),
        )

    @override
    def refuses(self, objective: Objective, others: Sequence[Condition]) -> str:
        if not objective.rules.allows_protection:
            promises = [name for name in ObjectiveName if Objective(name).rules.allows_protection]
            return f"{', '.join(promises)}, not {objective.name}"
        # What is sent is in the ratio of reservations: other rules speak of what is sent, rows of
        # what is reserved.
        return f"no further condition, such as {others[0].name}" if others else ""

    def rewrite(self, program: Program) -> Rewritten:
        """Bundles in the place of paths (:meth:`Condition.rewrite`); splits are promises in the
        ratio of the reservations.
        """
        bundles = BundleOps(program.columns, self.bundles)
        value = program.value.amax(-1, keepdim=True) * bundles.mask

        def splits(promised: Tensor) -> Tensor:
            reserved, promise = bundles.on_paths(promised), promised.sum(-1, keepdim=True)
            return reserved * (promise / reserved.sum(-1, keepdim=True).clamp(min=1e-30))

        def shares(splits: Tensor) -> Tensor:  # which bundles made them is not known
            return splits.new_zeros(len(splits), *bundles.mask.shape)

        return Rewritten(dataclasses.replace(program, columns=bundles, value=value), splits, shares)

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """Overload by the reservations, or share of a demand promised though a group leaves nothing
        (:meth:`Condition.violation`).
        """
        live = torch.where(program.live, splits, 0)
        left = self.left(live)
        is_lost = left <= torch.where(live.sum(-1) > 0, _NOTHING_LEFT * live.sum(-1), -1)
        reserved = torch.where(is_lost[..., None], splits, self.reserved(live, left))
        overload = program.overload(program.loads(reserved)).amax(1).clamp(min=0)
        return torch.maximum(overload, torch.where(is_lost, splits.sum(-1), 0).amax(1))

    @override
    def on_paths(self, ops: PathOps, num_links: int) -> Protection:
        return Protection.of(ops, num_links, self.groups)

    def repeated(self, count: int) -> Protection:
        """The promises for ``count`` demands over the paths of each, one block of demands after the
        other.
        """
        return Protection(
            self.groups, self.sets.repeat(count, 1, 1), self.bundles.repeat(count, 1, 1)
        )

    def unprotected(self, program: Program) -> Bool[Tensor, "B D"]:
        """(B, D) demands that no reservation can protect."""
        return ~self.rewrite(program).program.live.any(-1)

    def reserved(self, splits: Tensor, left: Tensor | None = None) -> Float[Tensor, "B D K"]:
        """(B, D, K) least reservations for splits, as shares of the demand; infinite where a group
        leaves nothing.

        Args:
            splits: (B, D, K).
            left: result of :meth:`left`, if it is known.
        """
        total = splits.sum(-1)
        return (
            splits
            * torch.where(total > 0, total / (self.left(splits) if left is None else left), 1)[
                ..., None
            ]
        )

    def left(self, splits: Tensor) -> Float[Tensor, "B D"]:
        """(B, D) share of the demand on the paths that the worst group leaves, before routers
        rescale.

        One matrix after the other: all sets of all demands and matrices together would not fit.
        """
        rows = [torch.where(self.sets, of_row[:, None], 0).sum(-1).amin(-1) for of_row in splits]
        return torch.stack(rows) if rows else splits.sum(-1)


def failed_paths(ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> BoolArray:
    """(G, D, K) true for the paths that cross a link of each group."""
    failed = torch.zeros(len(groups), num_links, dtype=torch.float64)
    for number, links in enumerate(groups):
        failed[number, list(links)] = 1
    hit: BoolArray = (ops.path_max(failed.to(ops.device))[0] > 0).cpu().numpy()
    return hit


def chosen_columns(ops: PathOps, num_links: int, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """(D, at most MAX_PATHS) columns of the paths that carry promises, ascending.

    One path after the other is taken that survives most of the groups that leave none of those
    taken before; of equal ones the first, since the paths of a set are in the order of what they
    carry.
    """
    exists = ops.mask.cpu().numpy()
    demands, width = exists.shape
    columns = np.tile(np.arange(min(width, MAX_PATHS)), (demands, 1))
    many = np.flatnonzero(exists.sum(1) > MAX_PATHS)
    if not len(many):
        return columns
    starts = range(0, len(groups), _GROUPS_AT_ONCE)
    parts = [
        failed_paths(ops, num_links, groups[first : first + _GROUPS_AT_ONCE])[:, many]
        for first in starts
    ]
    survives = exists[many] & ~np.concatenate([*parts, np.zeros((1, len(many), width), dtype=bool)])
    is_open, taken = (
        np.ones(survives.shape[:2], dtype=bool),
        np.zeros((len(many), width), dtype=bool),
    )
    rows = np.arange(len(many))
    for _ in range(MAX_PATHS):
        gain = np.where(taken | ~exists[many], -1, (survives & is_open[..., None]).sum(0))
        best = gain.argmax(1)
        taken[rows, best] = True
        is_open &= ~survives[:, rows, best]
    columns[many] = np.argsort(~taken, axis=1, kind="stable")[:, :MAX_PATHS]
    return columns


def _in_columns(values: np.ndarray, columns: np.ndarray, width: int) -> np.ndarray:
    """(D, M, width) values (D, M, n) of some columns (D, n); 0 in the others."""
    whole = np.zeros((*values.shape[:2], width), dtype=values.dtype)
    np.put_along_axis(whole, columns[:, None], values, 2)
    return whole


def _families(
    ops: PathOps, num_links: int, groups: Sequence[Sequence[int]], columns: np.ndarray
) -> np.ndarray:
    """(D,) bit c of a demand's number says that some group, or no failure, leaves the paths that
    are the bits of c.

    Args:
        ops: over the paths.
        num_links: E.
        groups: numbers of the links of each.
        columns: (D, n) those that count.
    """
    exists = np.take_along_axis(ops.mask.cpu().numpy(), columns, 1)

    def family(left: BoolArray) -> np.ndarray:
        codes = np.zeros(left.shape[:-1], np.uint8)
        for k in range(left.shape[-1]):
            codes |= left[..., k].view(np.uint8) << k
        return np.left_shift(np.uint64(1), np.arange(1 << MAX_PATHS, dtype=np.uint64))[codes]

    families = family(exists)
    for first in range(0, len(groups), _GROUPS_AT_ONCE):
        failed = failed_paths(ops, num_links, groups[first : first + _GROUPS_AT_ONCE])
        failed = np.take_along_axis(
            failed, np.broadcast_to(columns, (len(failed), *columns.shape)), 2
        )
        families |= np.bitwise_or.reduce(family(exists & ~failed), axis=0)
    return families


def _sets_of(family: int, width: int) -> BoolArray:
    """(m, K) the sets of paths of a family."""
    codes = [code for code in range(1 << width) if family >> code & 1]
    return np.array(
        [[bool(code >> k & 1) for k in range(width)] for code in codes], dtype=bool
    ).reshape(-1, width)


def _smallest(sets: BoolArray) -> BoolArray:
    """The sets that contain no other one: a larger set says nothing more."""
    return sets[
        [not any((other <= one).all() and (other < one).any() for other in sets) for one in sets]
    ]


def vertices(sets: BoolArray) -> FloatArray:
    """(J, K) vertices of {a >= 0: sum of a over each set >= 1}, all of them; none if a set is
    empty.

    Args:
        sets: (m, K).
    """
    return _vertices(sets.astype(bool).tobytes(), sets.shape[1])


@functools.lru_cache(maxsize=4096)
def _vertices(family: bytes, width: int) -> FloatArray:
    """The vertices from the bytes of the sets, which many demands and networks share."""
    sets = np.frombuffer(family, dtype=bool).reshape(-1, width)
    if not len(sets) or not sets.any(1).all():
        return np.zeros((0, width))
    used = np.flatnonzero(sets.any(0))
    rows = _smallest(np.unique(sets[:, used], axis=0)).astype(float)
    all_rows = np.vstack([rows, np.eye(len(used))])
    right = np.concatenate([np.ones(len(rows)), np.zeros(len(used))])
    parts = [np.zeros((0, len(used)))]
    combinations = itertools.combinations(range(len(all_rows)), len(used))
    while len(
        chosen := np.array(list(itertools.islice(combinations, _BASES_AT_ONCE)), dtype=np.int64)
    ):
        bases = all_rows[chosen]
        is_regular = np.abs(np.linalg.det(bases)) >= _VERTEX_TOLERANCE
        points = np.linalg.solve(bases[is_regular], right[chosen[is_regular]][..., None])[..., 0]
        is_inside = (points >= -_VERTEX_TOLERANCE).all(1) & (
            points @ rows.T >= 1 - _VERTEX_TOLERANCE
        ).all(1)
        parts.append(np.unique(points[is_inside].round(_VERTEX_DIGITS), axis=0))
    corners = np.maximum(np.unique(np.concatenate(parts), axis=0), 0)
    corners /= (corners @ rows.T).min(
        1, keepdims=True
    )  # what was rounded is a little too small, or too large
    whole = np.zeros((len(corners), width))
    whole[:, used] = corners
    whole.setflags(write=False)
    return whole
