r"""A limit on churn: the volume that a new allocation moves onto paths, against the splits in
force.

With w0[d, k] the splits in force, 0 on paths that are not live, the reference flows demand[d] w0[d,
k] are what the network carries if nothing is changed.  An allocation x moves

    moved(x) = sum over d, k of max(0, x[d, k] - demand[d] w0[d, k])      Gbit/s,

and may move ``share`` of the routable demand.  Taking flow off a path is free, since what is shed
needs no new path.  A demand whose splits in force are 0, such as one that was 0 before, moves with
all that it carries.

As a program: every column stands twice, for a share a <= w0 that stays and a share b that moves,
and one row more holds what moves to the budget,

    max sum v (a + b) demand  s.t.  load[e](a + b) <= c[e],  sum demand b <= share sum of demand,
    0 <= a <= w0,  b >= 0,  sum_k a + b <= 1.

The part of a demand in the bound is then a knapsack, which is filled in the order of the profits;
with pi the price of the row, a Gbit/s that moves has pi less of profit than one that stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from teal.errors import InputError
from teal.option import Option
from teal.pathops import PathOps
from teal.pathops.columns import MoveOps
from teal.problem.condition import Condition, ConditionRequest, Rewritten
from teal.problem.curves import Concave
from teal.problem.program import Program
from teal.problem.sets import Capped, DemandSet
from teal.runtime.shapes import Float

_BISECTIONS = 30  # of a price between 0 and 2
_TINY = 1e-30  # below which a divisor counts as 0


@dataclasses.dataclass(frozen=True, eq=False)
class ChurnLimit(Condition):
    """The limit of B matrices.

    Attributes:
        previous: (B, D, K) splits in force.
        share: share of the routable demand that may move, in [0, 1].
    """

    previous: Float[Tensor, "B D K"]
    share: float
    name: ClassVar[str] = "churn"
    changes_columns: ClassVar[bool] = True
    needs_previous: ClassVar[bool] = True
    option: ClassVar[Option | None] = Option(
        "max_churn",
        "Of the demand that has a working path the share that may be on other paths than in the "
        "answer that the "
        "parameter previous of the address names.",
        low=0,
        high=1,
    )

    @classmethod
    @override
    def asked(cls, request: ConditionRequest) -> ChurnLimit:
        assert request.previous is not None
        return cls(request.previous[None], request.value)

    def figures(self, program: Program, splits: Tensor) -> dict[str, Tensor]:
        """The share of the demand that moves (:meth:`Condition.figures`)."""
        return {"moved": share_moved(program, splits.to(program.demand), self.previous)}

    @classmethod
    def checked(cls, previous: Tensor, share: float, shape: Sequence[int]) -> ChurnLimit:
        """A limit of B matrices, validated.

        Args:
            previous: (B, D, K), or (D, K) for all matrices.
            share: share of the routable demand.
            shape: (B, D, K).

        Raises:
            InputError: another shape, entries that are no shares, or a share out of range.
        """
        if not 0 <= share <= 1:
            raise InputError("churn", "share", "a number in [0, 1]", share)
        if tuple(previous.shape) not in (tuple(shape), tuple(shape[1:])):
            raise InputError("churn", "previous", f"splits {tuple(shape)}", tuple(previous.shape))
        if not bool((torch.isfinite(previous) & (previous >= 0)).all()):
            raise InputError(
                "churn", "previous", "finite shares >= 0", "a negative, infinite or NaN entry"
            )
        return cls(previous.expand(*shape), share)

    def kept(self, program: Program) -> Float[Tensor, "B D K"]:
        """(B, D, K) splits in force on the live paths of a program, which stay if nothing moves."""
        return live_part(program, self.previous)

    def budget(self, program: Program) -> Float[Tensor, " B"]:
        """(B,) Gbit/s that may move."""
        return self.share * program.routable_demand.sum(1)

    def moved(self, program: Program, splits: Tensor) -> Float[Tensor, " B"]:
        """(B,) Gbit/s that splits (B, D, K) move."""
        return moved(program, splits, self.previous)

    def rewrite(self, program: Program) -> Rewritten:
        """Rewrite a program over moves (:meth:`Condition.rewrite`).

        Raises:
            InputError: a program whose columns are not paths.
        """
        is_capped = getattr(program.demand_set, "max_share", None) is not None
        if is_capped or program.columns.mask.shape != self.previous.shape[1:]:
            raise InputError(
                "churn", "program", "one over paths", "one that another condition rewrote"
            )
        kept = self.kept(program)
        largest, of_demand = _interleaved(kept, program.live.to(kept)), program.demand_set
        limited: DemandSet = Capped(largest)
        if isinstance(of_demand, Concave):
            limited = dataclasses.replace(of_demand, max_share=largest)
        doubled = dataclasses.replace(
            program,
            columns=MoveOps(program.columns),
            value=program.value.repeat_interleave(2, -1),
            demand_set=limited,
            limit=torch.cat([program.limit, self.budget(program)[:, None]], 1),
        )

        def shares(splits: Tensor) -> Tensor:
            stays = torch.minimum(splits, kept.to(splits))
            return _interleaved(stays, splits - stays)

        return Rewritten(
            doubled, lambda both: both.unflatten(-1, (-1, 2)).sum(-1), shares, shares(kept)
        )

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """The flow that moves beyond the budget, as a share of the routable demand
        (:meth:`Condition.violation`).
        """
        volume = program.routable_demand.sum(1).clamp(min=1e-30)
        return ((self.moved(program, splits) - self.budget(program)) / volume).clamp(min=0)

    def scaled(self, program: Program, splits: Tensor) -> Tensor:
        """Scale down those demands first of which the largest share of a lost Gbit/s had moved (see
        Condition).

        A demand of which the factor f is kept moves on the paths with f split > w0 alone, so that
        what moves is convex in f, and its slope, a share of the demand's flow, rises at w0 / split
        of each path.  At the price p of what moves, f is where the slope rises above p; the
        smallest price that meets the budget is found by bisection.
        """
        kept, total = self.kept(program), splits.sum(-1, keepdim=True)
        begin = torch.where(splits > 0, kept / splits.clamp(min=_TINY), torch.inf)
        begin, order = begin.sort(-1)
        slope = (splits / total.clamp(min=_TINY)).gather(-1, order).cumsum(-1)
        budget = self.budget(program)

        def at(price: Tensor) -> tuple[Tensor, Tensor]:
            factor = (
                torch.where(slope > price[:, None, None], begin, torch.inf).amin(-1).clamp(max=1)
            )
            fitted = factor[..., None] * splits
            return fitted, self.moved(program, fitted)

        low, high = torch.zeros_like(budget), torch.full_like(budget, 2.0)  # no slope is above 1
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            fits = at(middle)[1] <= budget
            low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
        (less, least), (more, most) = at(low), at(high)
        part = ((budget - least) / (most - least).clamp(min=_TINY)).clamp(0, 1)[:, None, None]
        return torch.where((most <= budget)[:, None, None], more, less + part * (more - less))

    @override
    def rows(self, rows: slice | Tensor) -> ChurnLimit:
        return ChurnLimit(self.previous[rows], self.share)

    @override
    def for_batch(self, batch: int) -> ChurnLimit:
        if bool((self.previous != self.previous[:1]).any()):
            raise InputError(
                "with_demand", "churn", "the same splits in force for all", "different ones"
            )
        return ChurnLimit(self.previous[:1].expand(batch, -1, -1), self.share)

    @override
    def on_paths(self, ops: PathOps, num_links: int) -> ChurnLimit:
        raise InputError(
            "with_paths", "churn", "none: its splits in force are over the old paths", "a limit"
        )


def _interleaved(stay: Tensor, move: Tensor) -> Tensor:
    """(B, D, 2 K) values of columns, of (B, D, K) of those to stay on and of those to move onto."""
    return torch.stack([stay, move], -1).flatten(-2)


def live_part(program: Program, previous: Tensor) -> Float[Tensor, "B D K"]:
    """Splits (B, D, K) or (D, K) in force on live paths, of each demand at most 1 in sum."""
    kept = torch.where(program.live, previous.to(program.demand).clamp(min=0), 0)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1)


def share_moved(program: Program, splits: Tensor, previous: Tensor) -> Float[Tensor, " B"]:
    """(B,) :func:`moved`, as a share of the routable demand; 0 without any."""
    return moved(program, splits, previous) / program.routable_demand.sum(1).clamp(min=1e-300)


def moved(program: Program, splits: Tensor, previous: Tensor) -> Float[Tensor, " B"]:
    """(B,) Gbit/s that splits (B, D, K) move, against ``previous`` ones, (B, D, K) or (D, K)."""
    return program.flows((splits - live_part(program, previous)).clamp(min=0)).sum((1, 2))
