"""Euclidean projections in closed form, batched."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel, partitioned_kernel, threads_for

_MAX_NUMBERS = 20_000_000  # that project_box_plainly holds at once, 160 MB
_MIN_PARALLEL_OPERATIONS = (
    3_000_000  # of project_box: below, compiling the form for all threads is not worth its time
)


def project_splits(
    splits: Tensor, mask: Tensor, *, carries_all: bool, slope: Tensor | None = None
) -> Tensor:
    """Nearest point of {w >= 0, sum w <= 1} (= 1 if ``carries_all``) for each demand: (B, D, K).

    By sorting (Held, Wolfe & Crowder 1974): w = max(0, x - t s), with t such that the sum is 1, and
    t = 0 where the positive part already sums to less.  Near in the metric diag(1 / s).

    Args:
        splits: (B, D, K) x.
        mask: (B, D, K) live paths; the others get 0.
        carries_all: whether a demand is carried whole.
        slope: (B, D, K) s, positive; None for 1.
    """
    s = mask.to(splits) if slope is None else torch.where(mask, slope, 0)
    point = torch.where(mask, splits, 0)
    shift = _shifts(point, s, mask, point.new_ones(1))
    if not carries_all:
        shift = shift.clamp(min=0)
    return torch.where(mask, (point - shift * s).clamp(min=0), 0)


def _shifts(point: Tensor, slope: Tensor, mask: Tensor, sums: Tensor) -> Tensor:
    """(B, D, C) the t for which max(0, point - t slope) sums to each of ``sums`` (..., C); 0 where
    no path is live.
    """
    tiny = torch.finfo(slope.dtype).tiny
    order = torch.where(mask, point / slope.clamp(min=tiny), -torch.inf).argsort(
        -1, descending=True
    )
    points, slopes = point.gather(-1, order).cumsum(-1), slope.gather(-1, order).cumsum(-1)
    excess = (points[..., None] - sums[..., None, :]) / slopes.clamp(min=tiny)[..., None]
    # Of all prefixes of the sorted order, the right one gives the largest t.
    shift = torch.where((slopes > 0)[..., None], excess, -torch.inf).amax(-2)
    return torch.where(shift.isinf(), 0, shift)


def project_steps(splits: Tensor, mask: Tensor, end: Tensor, drop: Tensor) -> Tensor:
    """The step of a demand whose value falls in steps: (B, D, K).

    The minimum of |w - x|^2 / 2 + sum over c of drop[c] (part of sum w in step c) over {w >= 0, sum
    w <= 1}: by its optimality conditions w = max(0, x - t), t = min over c of max(drop[c], t_c),
    with t_c such that w sums to end[c].

    Args:
        splits: (B, D, K) x, after a gradient step with the value of the first step.
        mask: (B, D, K) live paths; the others get 0.
        end: (B, D, C) share of the demand at which each step ends.
        drop: (B, D, C) by which the gradient step of each step is shorter than that of the first;
            rising.
    """
    point = torch.where(mask, splits, 0)
    shift = torch.maximum(drop, _shifts(point, mask.to(point), mask, end)).amin(-1, keepdim=True)
    return torch.where(mask, (point - shift).clamp(min=0), 0)


def weighted_simplex(point: Tensor, slope: Tensor, total: Tensor | float, live: Tensor) -> Tensor:
    """max(0, point - t slope) with t such that the entries sum to ``total``: (B, E), exact, by
    sorting.

    This is the prox of a simplex in the metric diag(1 / slope).

    Args:
        point: (B, E).
        slope: (B, E) positive.
        total: the sum, a number or (B, 1).
        live: (B, E) entries that take part; the others get 0.
    """
    point, slope = torch.where(live, point, 0), torch.where(live, slope, 0)
    order = torch.where(live, point / slope.clamp(min=1e-30), -torch.inf).argsort(
        1, descending=True
    )
    sums, slopes = point.gather(1, order).cumsum(1), slope.gather(1, order).cumsum(1)
    shift = ((sums - total) / slopes.clamp(min=1e-30)).amax(
        1, keepdim=True
    )  # t, again the largest of all prefixes
    return (point - shift * slope).clamp(min=0)


def project_box(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    """Nearest w of {0 <= w <= limit, sum w <= 1} for each demand, in the metric diag(1 / slope):
    (B, D, n).

    w = clip(point - t slope, 0, limit) with the least t >= 0 for which the sum is at most 1.  The
    sum is linear between the 2 n values of t at which an entry reaches a bound, so that its values
    there give t.

    Args:
        point: (B, D, n).
        limit: (B, D, n) upper bounds.
        slope: (B, D, n) positive.
    """
    if point.device.type == "cpu" and point.dtype == torch.float64:
        width, out = point.shape[-1], torch.empty_like(point, memory_format=torch.contiguous_format)
        points, limits, slopes = (
            part.expand_as(point).reshape(-1, width).contiguous() for part in (point, limit, slope)
        )
        with threads_for(2 * point.numel() * point.shape[-1], least=_MIN_PARALLEL_OPERATIONS):
            _project_rows(
                points.numpy(), limits.numpy(), slopes.numpy(), out.view(-1, width).numpy()
            )
        return out
    at_once = max(1, _MAX_NUMBERS // max(1, 2 * len(point) * point.shape[-1] ** 2))
    parts = zip(
        point.split(at_once, 1), limit.split(at_once, 1), slope.split(at_once, 1), strict=True
    )
    return torch.cat([project_box_plainly(*part) for part in parts], 1)


@partitioned_kernel("points")
def _project_rows(
    begin: int,
    end: int,
    points: FloatArray,
    limits: FloatArray,
    slopes: FloatArray,
    out: FloatArray,
) -> None:
    """:func:`project_box` of rows (m, n): of all breakpoints the two between which the sum falls to
    1.
    """
    width = points.shape[1]
    for row in range(begin, end):
        point, limit, slope = points[row], limits[row], slopes[row]
        low, high, t = 0.0, np.inf, 0.0
        if _sum_at(0.0, point, limit, slope) > 1:
            for i in range(2 * width):
                j = i % width
                t = point[j] / slope[j] if i < width else (point[j] - limit[j]) / slope[j]
                if low < t < high:
                    if _sum_at(t, point, limit, slope) > 1:
                        low = t
                    else:
                        high = t
            excess, falling = _sum_at(low, point, limit, slope) - 1, 0.0
            for j in range(width):  # the entries that fall between the two
                if (point[j] - limit[j]) / slope[j] <= low and point[j] / slope[j] >= high:
                    falling += slope[j]
            t = low + excess / falling if falling > 0 else high
        for j in range(width):
            out[row, j] = min(max(point[j] - t * slope[j], 0.0), limit[j])


@inner_kernel
def _sum_at(t, point, limit, slope):  # type: ignore[no-untyped-def]
    """Sum of clip(point - t slope, 0, limit)."""
    total = 0.0
    for j in range(len(point)):
        total += min(max(point[j] - t * slope[j], 0.0), limit[j])
    return total


def project_box_plainly(point: Tensor, limit: Tensor, slope: Tensor) -> Tensor:
    """:func:`project_box` in torch, on any device; all values of t at once."""

    def at(t: Tensor) -> Tensor:
        return torch.minimum((point - t * slope).clamp(min=0), limit)

    breaks = torch.cat([(point - limit) / slope, point / slope], -1).clamp(min=0)  # (B, D, 2 n)
    moved = point[..., None, :] - breaks[..., None] * slope[..., None, :]
    is_over = torch.minimum(moved.clamp(min=0), limit[..., None, :]).sum(-1) > 1
    low = torch.where(is_over, breaks, 0).amax(-1, keepdim=True)
    high = torch.where(is_over, torch.inf, breaks).amin(
        -1, keepdim=True
    )  # at the largest value all entries are 0
    at_low, at_high = at(low), at(high)
    excess = at_low.sum(-1, keepdim=True) - 1
    fall = (at_low - at_high).sum(-1, keepdim=True)
    t = low + (high - low) * torch.where(
        fall > 0, excess / torch.where(fall > 0, fall, 1), 0
    ).clamp(0, 1)
    return torch.where(
        at(torch.zeros_like(low)).sum(-1, keepdim=True) > 1, at(t), at(torch.zeros_like(low))
    )
