"""Churn limit: a bound on the volume that moves to other paths than the installed splits.

With the installed splits w0[d, k], 0 on paths that are not live, the reference flows are demand[d]
w0[d, k]. An allocation x moves

    moved(x) = sum over d, k of max(0, x[d, k] - demand[d] w0[d, k])      Gbit/s,

and may move ``share`` of the routable demand. Taking flow off a path is free, since shed traffic
needs no new path. A demand without installed splits, such as a new one, moves with its whole flow.

Rewritten program: every column is doubled, for a share a <= w0 that stays and a share b that moves,
and one added row limits the moved volume,

    max sum v (a + b) demand  s.t.  load[e](a + b) <= c[e],  sum demand b <= share sum of demand,
    0 <= a <= w0,  b >= 0,  sum_k a + b <= 1.

The term of a demand in the dual bound is then a knapsack, filled by descending profit; with pi the
price of the added row, a moved Gbit/s has pi less profit than one that stays. Main class:
:class:`ChurnLimit`.
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

# Bisection steps of a price between 0 and 2.
_BISECTIONS = 30
# Smallest divisor, instead of 0.
_MIN_DIVISOR = 1e-30


@dataclasses.dataclass(frozen=True, eq=False)
class ChurnLimit(Condition):
    """Limit on the volume that moves to other paths than the installed splits, for B matrices.

    Attributes:
        previous: (B, D, K) installed splits.
        share: share of the routable demand that may move, in [0, 1].
    """

    previous: Float[Tensor, "B D K"]
    share: float
    name: ClassVar[str] = "churn"
    changes_columns: ClassVar[bool] = True
    needs_previous: ClassVar[bool] = True
    option: ClassVar[Option | None] = Option(
        "max_churn",
        "Largest share of the routable demand that may move to other paths, relative to the answer "
        "named by the parameter previous of the address.",
        low=0,
        high=1,
    )

    @classmethod
    @override
    def from_request(cls, request: ConditionRequest) -> ChurnLimit:
        assert request.previous is not None
        return cls(request.previous[None], request.value)

    def figures(self, program: Program, splits: Tensor) -> dict[str, Tensor]:
        """Return the moved volume (B,) as a share of the routable demand, under the key "moved"."""
        return {"moved": share_moved(program, splits.to(program.demand), self.previous)}

    @classmethod
    def checked(cls, previous: Tensor, share: float, shape: Sequence[int]) -> ChurnLimit:
        """Build a validated limit of B matrices.

        Args:
            previous: (B, D, K) installed splits, or (D, K) for all matrices.
            share: share of the routable demand that may move, in [0, 1].
            shape: (B, D, K).

        Raises:
            InputError: another shape, entries that are no shares, or a share out of range.
        """
        if not 0 <= share <= 1:
            raise InputError("churn", "share", "a number in [0, 1]", share)
        if tuple(previous.shape) not in (tuple(shape), tuple(shape[1:])):
            raise InputError(
                "churn", "previous", f"splits of shape {tuple(shape)}", tuple(previous.shape)
            )
        if not bool((torch.isfinite(previous) & (previous >= 0)).all()):
            raise InputError.invalid(
                "churn",
                "previous",
                "a split is negative, infinite or NaN",
                "give finite shares >= 0",
            )
        return cls(previous.expand(*shape), share)

    def installed_shares(self, program: Program) -> Float[Tensor, "B D K"]:
        """Return the installed splits (B, D, K) on the live paths of a program."""
        return live_part(program, self.previous)

    def budget(self, program: Program) -> Float[Tensor, " B"]:
        """Return the volume (B,) in Gbit/s that may move: ``share`` of the routable demand."""
        return self.share * program.routable_demand.sum(1)

    def moved(self, program: Program, splits: Tensor) -> Float[Tensor, " B"]:
        """Return the volume (B,) in Gbit/s that moves if splits (B, D, K) replace the installed
        ones.
        """
        return moved(program, splits, self.previous)

    def rewrite(self, program: Program) -> Rewritten:
        """Rewrite a program over paths with doubled columns: staying and moving shares.

        Columns 2 k and 2 k + 1 stand for path k.  The staying share is at most the installed split;
        an added row limits the moved volume to the budget.

        Raises:
            InputError: a program whose columns are not paths.
        """
        is_capped = getattr(program.demand_set, "max_share", None) is not None
        if is_capped or program.columns.mask.shape != self.previous.shape[1:]:
            raise InputError.invalid(
                "churn", "program", "another condition has replaced the paths of the program"
            )
        # (B, D, 2 K) largest share of each column: the installed split, or 1 for moved flow.
        installed = self.installed_shares(program)
        max_share = _interleaved(installed, program.live.to(installed))
        demand_set = program.demand_set
        capped_set: DemandSet = Capped(max_share)
        if isinstance(demand_set, Concave):
            capped_set = dataclasses.replace(demand_set, max_share=max_share)
        # Double the columns, and add the row that limits the moved volume.
        doubled_program = dataclasses.replace(
            program,
            columns=MoveOps(program.columns),
            value=program.value.repeat_interleave(2, -1),
            demand_set=capped_set,
            limit=torch.cat([program.limit, self.budget(program)[:, None]], 1),
        )

        def shares(splits: Tensor) -> Tensor:
            staying = torch.minimum(splits, installed.to(splits))
            return _interleaved(staying, splits - staying)

        return Rewritten(
            doubled_program,
            lambda column_shares: column_shares.unflatten(-1, (-1, 2)).sum(-1),
            shares,
            shares(installed),
        )

    def violation(self, program: Program, splits: Tensor) -> Tensor:
        """Return the moved volume in excess of the budget (B,), as a share of the
        routable demand.
        """
        volume = program.routable_demand.sum(1).clamp(min=1e-30)
        return ((self.moved(program, splits) - self.budget(program)) / volume).clamp(min=0)

    def scaled(self, program: Program, splits: Tensor) -> Tensor:
        """Scale down demands until the moved volume meets the budget, those that move most first;
        return the scaled splits (B, D, K).

        A demand scaled by a factor f moves only on the paths with f * split > w0, where w0 is the
        installed split.  Its moved volume is therefore convex in f, with breakpoints at w0 / split
        of each path, where the slope rises.  At a price p of moved volume, f is the breakpoint at
        which the slope (relative to the demand's flow) rises above p.  Bisection finds the smallest
        price that meets the budget.

        Args:
            program: program over paths.
            splits: (B, D, K) share of each demand on each path.
        """
        installed = self.installed_shares(program)
        total_split = splits.sum(-1, keepdim=True)
        # (B, D, K) breakpoints of each demand's moved volume, ascending, and the slopes after them.
        breakpoint_factor = torch.where(
            splits > 0, installed / splits.clamp(min=_MIN_DIVISOR), torch.inf
        )
        breakpoint_factor, order = breakpoint_factor.sort(-1)
        slope = (splits / total_split.clamp(min=_MIN_DIVISOR)).gather(-1, order).cumsum(-1)
        budget = self.budget(program)

        # Scaled splits (B, D, K), and their moved volume (B,), at a price (B,).
        def splits_at_price(price: Tensor) -> tuple[Tensor, Tensor]:
            factor = (
                torch.where(slope > price[:, None, None], breakpoint_factor, torch.inf)
                .amin(-1)
                .clamp(max=1)
            )
            scaled_splits = factor[..., None] * splits
            return scaled_splits, self.moved(program, scaled_splits)

        # Bisection of the price (B,) between 0 and 2, since slopes are at most 1.
        price_low = torch.zeros_like(budget)
        price_high = torch.full_like(budget, 2.0)
        for _ in range(_BISECTIONS):
            price_middle = (price_low + price_high) / 2
            meets_budget = splits_at_price(price_middle)[1] <= budget
            price_low = torch.where(meets_budget, price_middle, price_low)
            price_high = torch.where(meets_budget, price_high, price_middle)
        splits_low, moved_low = splits_at_price(price_low)
        splits_high, moved_high = splits_at_price(price_high)
        # Interpolate between the two sides of the bisection.
        weight_high = (
            (budget - moved_low) / (moved_high - moved_low).clamp(min=_MIN_DIVISOR)
        ).clamp(0, 1)[:, None, None]
        return torch.where(
            (moved_high <= budget)[:, None, None],
            splits_high,
            splits_low + weight_high * (splits_high - splits_low),
        )

    @override
    def rows(self, rows: slice | Tensor) -> ChurnLimit:
        return ChurnLimit(self.previous[rows], self.share)

    @override
    def for_batch(self, batch: int) -> ChurnLimit:
        if bool((self.previous != self.previous[:1]).any()):
            raise InputError.invalid(
                "with_demand",
                "churn",
                "the installed splits of the limit differ between matrices",
                "create a problem for each matrix",
            )
        return ChurnLimit(self.previous[:1].expand(batch, -1, -1), self.share)

    @override
    def on_paths(self, ops: PathOps, num_links: int) -> ChurnLimit:
        raise InputError.invalid(
            "with_paths",
            "churn",
            "the installed splits of the limit are over the old paths",
            "add the limit after the change of paths",
        )


def _interleaved(stay: Tensor, move: Tensor) -> Tensor:
    """Return the values of the doubled columns (B, D, 2 K): of each path first the staying, then
    the moving share.

    Args:
        stay: (B, D, K) values of the staying shares.
        move: (B, D, K) values of the moving shares.
    """
    return torch.stack([stay, move], -1).flatten(-2)


def live_part(program: Program, previous: Tensor) -> Float[Tensor, "B D K"]:
    """Return installed splits (B, D, K) on live paths, with a sum of at most 1 per demand.

    Args:
        program: program over paths.
        previous: (B, D, K) or (D, K) installed splits.
    """
    installed = torch.where(program.live, previous.to(program.demand).clamp(min=0), 0)
    return installed / installed.sum(-1, keepdim=True).clamp(min=1)


def share_moved(program: Program, splits: Tensor, previous: Tensor) -> Float[Tensor, " B"]:
    """Return the moved volume (B,) as a share of the routable demand; 0 without such demand."""
    return moved(program, splits, previous) / program.routable_demand.sum(1).clamp(min=1e-300)


def moved(program: Program, splits: Tensor, previous: Tensor) -> Float[Tensor, " B"]:
    """Return the moved volume (B,) in Gbit/s: the sum of demand * max(0, split - installed split).

    Args:
        program: program over paths.
        splits: (B, D, K) new splits.
        previous: (B, D, K) or (D, K) installed splits.
    """
    return program.flows((splits - live_part(program, previous)).clamp(min=0)).sum((1, 2))
