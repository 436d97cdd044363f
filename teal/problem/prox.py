"""Euclidean projections onto simplices and boxes in closed form, batched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel, threads_for

# Largest number of float64 values that project_box_in_torch holds at once: 160 MB.
_MAX_ENTRIES = 20_000_000
# Number of operations from which project_box uses all threads.
_MIN_PARALLEL_OPERATIONS = 3_000_000


def project_splits(
    splits: Tensor, mask: Tensor, *, carries_all: bool, slope: Tensor | None = None
) -> Tensor:
    """Project the splits of each demand onto {w >= 0, sum w <= 1}, or onto {w >= 0, sum w = 1} if
    ``carries_all``; return (B, D, K).

    The metric is diag(1 / s); the method is sorting (Held, Wolfe & Crowder 1974): w = max(0, x -
    t s), with t such that the sum is 1.  If the sum may be less than 1, t is at least 0.

    Args:
        splits: (B, D, K) splits x to project.
        mask: (B, D, K) live paths; the others get 0.
        carries_all: whether all of a demand must be carried.
        slope: (B, D, K) positive weights s of the metric; None for 1.
    """
    masked_slope = mask.to(splits) if slope is None else torch.where(mask, slope, 0)
    point = torch.where(mask, splits, 0)
    shift = _shifts_to_sums(point, masked_slope, mask, point.new_ones(1))
    if not carries_all:
        shift = shift.clamp(min=0)
    return torch.where(mask, (point - shift * masked_slope).clamp(min=0), 0)


def _shifts_to_sums(point: Tensor, slope: Tensor, mask: Tensor, required_sums: Tensor) -> Tensor:
    """Return the shifts t (B, D, C) for which max(0, point - t slope) sums to each of C values.

    Args:
        point: (B, D, K) entries to shift, 0 where no path is live.
        slope: (B, D, K) positive, 0 where no path is live.
        mask: (B, D, K) live paths; t is 0 for a demand without any.
        required_sums: (..., C) required sums.
    """
    tiny = torch.finfo(slope.dtype).tiny
    order = torch.where(mask, point / slope.clamp(min=tiny), -torch.inf).argsort(
        -1, descending=True
    )
    # With j entries above 0, t = (sum of j points - required sum) / sum of j slopes.
    point_sums = point.gather(-1, order).cumsum(-1)
    slope_sums = slope.gather(-1, order).cumsum(-1)
    excess = (point_sums[..., None] - required_sums[..., None, :]) / slope_sums.clamp(min=tiny)[
        ..., None
    ]
    # The correct j gives the largest t.
    shift = torch.where((slope_sums > 0)[..., None], excess, -torch.inf).amax(-2)
    return torch.where(shift.isinf(), 0, shift)


def project_steps(splits: Tensor, mask: Tensor, end: Tensor, drop: Tensor) -> Tensor:
    """Return the proximal step (B, D, K) of a demand with value steps.

    It minimises |w - x|^2 / 2 + sum over c of drop[c] (part of sum w in step c) over {w >= 0,
    sum w <= 1}.  By its optimality conditions w = max(0, x - t) with t = min over c of max(drop[c],
    t_c), where t_c is the shift at which w sums to end[c].

    Args:
        splits: (B, D, K) splits x after a gradient step with the value of the first step.
        mask: (B, D, K) live paths; the others get 0.
        end: (B, D, C) share of the demand at which each step ends.
        drop: (B, D, C) reduction of the gradient step in each step relative to the first,
            non-decreasing.
    """
    point = torch.where(mask, splits, 0)
    shift = torch.maximum(drop, _shifts_to_sums(point, mask.to(point), mask, end)).amin(
        -1, keepdim=True
    )
    return torch.where(mask, (point - shift).clamp(min=0), 0)


def weighted_simplex(point: Tensor, slope: Tensor, total: Tensor | float, live: Tensor) -> Tensor:
    """Project points onto a simplex in the metric diag(1 / slope), exactly, by sorting.

    The result is max(0, point - t slope) (B, E), with t such that the live entries sum to
    ``total``.

    Args:
        point: (B, E) points to project.
        slope: (B, E) positive weights of the metric.
        total: required sum, a number or (B, 1).
        live: (B, E) live entries; the others get 0.
    """
    point = torch.where(live, point, 0)
    slope = torch.where(live, slope, 0)
    order = torch.where(live, point / slope.clamp(min=1e-30), -torch.inf).argsort(
        1, descending=True
    )
    point_sums = point.gather(1, order).cumsum(1)
    slope_sums = slope.gather(1, order).cumsum(1)
    # With j entries above 0, t = (sum of j points - total) / sum of j slopes; the correct j gives
    # the largest t.
    shift = ((point_sums - total) / slope_sums.clamp(min=1e-30)).amax(1, keepdim=True)
    return (point - shift * slope).clamp(min=0)


def project_box(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    """Project each demand onto {0 <= w <= limit, sum w <= 1} in the metric diag(1 / slope).

    w = clip(point - t slope, 0, limit) (B, D, n), with the smallest t >= 0 for which the sum is at
    most 1.  The sum is linear between the 2 n values of t at which an entry reaches a bound, so
    that the sums at these breakpoints give t.

    Args:
        point: (B, D, n) points to project.
        limit: (B, D, n) upper bounds.
        slope: (B, D, n) positive weights of the metric.
    """
    # On the CPU by a compiled kernel, row by row.
    if point.device.type == "cpu" and point.dtype == torch.float64:
        num_columns = point.shape[-1]
        out = torch.empty_like(point, memory_format=torch.contiguous_format)
        points, limits, slopes = (
            array.expand_as(point).reshape(-1, num_columns).contiguous()
            for array in (point, limit, slope)
        )
        with threads_for(
            2 * point.numel() * point.shape[-1], min_operations=_MIN_PARALLEL_OPERATIONS
        ):
            _project_rows(
                points.numpy(), limits.numpy(), slopes.numpy(), out.view(-1, num_columns).numpy()
            )
        return out
    # Elsewhere in torch, in chunks that fit into memory.
    demands_per_chunk = max(1, _MAX_ENTRIES // max(1, 2 * len(point) * point.shape[-1] ** 2))
    chunks = zip(
        point.split(demands_per_chunk, 1),
        limit.split(demands_per_chunk, 1),
        slope.split(demands_per_chunk, 1),
        strict=True,
    )
    return torch.cat([project_box_in_torch(*array) for array in chunks], 1)


@partitioned_kernel("points")
def _project_rows(
    begin: int,
    end: int,
    points: FloatArray,
    limits: FloatArray,
    slopes: FloatArray,
    out: FloatArray,
) -> None:
    """Project rows onto {0 <= w <= limit, sum w <= 1} in the metric diag(1 / slope).

    w = clip(point - t slope, 0, limit) with the smallest t >= 0 for which the sum is at most 1,
    between the two breakpoints (values of t at which an entry reaches a bound) where the sum falls
    to 1.

    Args:
        begin, end: first row to compute, and the row after the last one.
        points: (m, n) rows to project.
        limits: (m, n) upper bounds of the entries.
        slopes: (m, n) positive weights of the metric.
        out: (m, n) projected rows (written).
    """
    num_columns = points.shape[1]
    for row in range(begin, end):
        point = points[row]
        limit = limits[row]
        slope = slopes[row]
        low = 0.0
        high = np.inf
        t = 0.0
        if _sum_at(0.0, point, limit, slope) > 1:
            # Largest breakpoint with a sum above 1 (low), smallest with a sum of at most 1 (high).
            for i in range(2 * num_columns):
                j = i % num_columns
                # Breakpoints at which an entry reaches 0, then those at which it leaves its limit.
                t = point[j] / slope[j] if i < num_columns else (point[j] - limit[j]) / slope[j]
                if low < t < high:
                    if _sum_at(t, point, limit, slope) > 1:
                        low = t
                    else:
                        high = t
            # Linear interpolation: the entries that decrease between low and high.
            excess = _sum_at(low, point, limit, slope) - 1
            slope_sum = 0.0
            for j in range(num_columns):
                if (point[j] - limit[j]) / slope[j] <= low and point[j] / slope[j] >= high:
                    slope_sum += slope[j]
            t = low + excess / slope_sum if slope_sum > 0 else high
        for j in range(num_columns):
            out[row, j] = min(max(point[j] - t * slope[j], 0.0), limit[j])


@inner_kernel
def _sum_at(t, point, limit, slope):  # type: ignore[no-untyped-def]
    """Return the sum of clip(point - t slope, 0, limit) over the entries (n,)."""
    total = 0.0
    for j in range(len(point)):
        total += min(max(point[j] - t * slope[j], 0.0), limit[j])
    return total


def project_box_in_torch(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    """Project each demand onto {0 <= w <= limit, sum w <= 1}, in torch.

    The metric is diag(1 / slope).  All 2 n breakpoints of a demand are evaluated at once, which
    needs memory for 2 n arrays of shape (B, D, n).

    Args:
        point: (B, D, n) points to project.
        limit: (B, D, n) upper bounds.
        slope: (B, D, n) positive weights of the metric.
    """

    def clipped_at(t: Tensor) -> Tensor:
        return torch.minimum((point - t * slope).clamp(min=0), limit)

    # (B, D, 2 n) values of t at which an entry reaches a bound.
    breakpoints = torch.cat([(point - limit) / slope, point / slope], -1).clamp(min=0)
    shifted = point[..., None, :] - breakpoints[..., None] * slope[..., None, :]
    is_over = torch.minimum(shifted.clamp(min=0), limit[..., None, :]).sum(-1) > 1
    # Largest breakpoint with a sum above 1, smallest with a sum of at most 1.
    low = torch.where(is_over, breakpoints, 0).amax(-1, keepdim=True)
    # At the largest breakpoint all entries are 0.
    high = torch.where(is_over, torch.inf, breakpoints).amin(-1, keepdim=True)
    shares_low = clipped_at(low)
    shares_high = clipped_at(high)
    # Linear interpolation of the sum.
    excess = shares_low.sum(-1, keepdim=True) - 1
    decrease = (shares_low - shares_high).sum(-1, keepdim=True)
    t = low + (high - low) * torch.where(
        decrease > 0, excess / torch.where(decrease > 0, decrease, 1), 0
    ).clamp(0, 1)
    return torch.where(
        clipped_at(torch.zeros_like(low)).sum(-1, keepdim=True) > 1,
        clipped_at(t),
        clipped_at(torch.zeros_like(low)),
    )
