"""The least of convex functions of a few numbers, by tangents: for the prices of rows that nobody gave prices for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from teal.runtime.arrays import FloatArray

_MOST_POINTS = 60  # that are tried; about ten are needed for one number
_END_GROWTH, _MOST_ENDS = 8.0, 12  # x the end where the function still falls there, and how often
_VALUE_TOLERANCE = 1e-9  # share of the least value so far that another point may lie below it, at which the search ends


def least_points(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """(B, n) where each of B convex functions of n numbers >= 0 is least, nearly (Kelley 1960).

    Args:
        function: (B, n) -> (B,), differentiable almost everywhere.
        ends: (B, n) numbers beyond which the least seldom lies.
    """
    return _on_a_line(function, ends) if ends.shape[1] == 1 else _in_a_box(function, ends)


def _tangent(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
    """Value (B,) and slope (B, n) of functions at points (B, n)."""
    with torch.enable_grad():
        free = point.detach().clone().requires_grad_()
        value = function(free)
        (slope,) = torch.autograd.grad(value.sum(), free)
    return value.detach(), slope


def _on_a_line(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Of one number: the next point is where the tangents on both sides of the least meet, all rows together."""

    def tangent(point: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = _tangent(function, point[:, None])
        return value, slope[:, 0]

    low, high = torch.zeros_like(ends[:, 0]), ends[:, 0].clone()
    (at_low, slope_low), (at_high, slope_high) = tangent(low), tangent(high)
    for _ in range(_MOST_ENDS):
        if not bool((slope_high < 0).any()):
            break
        high = torch.where(slope_high < 0, _END_GROWTH * high, high)
        at_high, slope_high = tangent(high)
    best, point = torch.minimum(at_low, at_high), torch.where(at_low <= at_high, low, high)
    for number in range(_MOST_POINTS):
        fall = slope_high - slope_low
        meeting = (at_low - at_high + slope_high * high - slope_low * low) / torch.where(fall > 0, fall, 1)
        least = at_low + slope_low * (meeting - low)  # of the two tangents: no point is below it
        is_open = (slope_low < 0) & (slope_high > 0) & (best - least > _VALUE_TOLERANCE * best.abs())
        if not bool(is_open.any()):
            break
        # Tangents of one long edge and one short one creep: every third point is the middle.
        inside = (low + high) / 2 if number % 3 == 2 else torch.minimum(torch.maximum(meeting, low), high)
        value, slope = tangent(torch.where(is_open, inside, point))
        is_better = is_open & (value < best)
        best, point = torch.where(is_better, value, best), torch.where(is_better, inside, point)
        rises, falls = is_open & (slope >= 0), is_open & (slope < 0)
        high, at_high, slope_high = (
            torch.where(rises, new, old) for new, old in ((inside, high), (value, at_high), (slope, slope_high))
        )
        low, at_low, slope_low = (
            torch.where(falls, new, old) for new, old in ((inside, low), (value, at_low), (slope, slope_low))
        )
    return point[:, None]


def _in_a_box(function: Callable[[Tensor], Tensor], ends: Tensor) -> Tensor:
    """Of several numbers: the next point is where the largest of all tangents so far is least, by a small LP a row."""
    ends = ends * _END_GROWTH**2
    best, best_point = torch.full_like(ends[:, 0], torch.inf), torch.zeros_like(ends)
    tangents: list[list[tuple[FloatArray, float]]] = [[] for _ in ends]  # slope and value at 0 of each, by row
    point = torch.zeros_like(ends)
    for _ in range(_MOST_POINTS):
        value, slope = _tangent(function, point)
        is_better = value < best
        best, best_point = torch.where(is_better, value, best), torch.where(is_better[:, None], point, best_point)
        offset, is_open, following = value - (slope * point).sum(1), False, best_point.clone()
        for row, planes in enumerate(tangents):
            planes.append((slope[row].cpu().numpy(), float(offset[row])))
            lowest, place = _least_of(planes, ends[row].cpu().numpy())
            if float(best[row]) - lowest > _VALUE_TOLERANCE * abs(float(best[row])):
                is_open, following[row] = True, torch.from_numpy(place).to(point)
        if not is_open:
            break
        point = following
    return best_point


def _least_of(tangents: list[tuple[FloatArray, float]], ends: FloatArray) -> tuple[float, FloatArray]:
    """Least of the largest of all slope x + offset over the box [0, ends], and where it is."""
    slopes, offsets = np.stack([slope for slope, _ in tangents]), np.array([offset for _, offset in tangents])
    size = float(np.abs(offsets).max()) or 1.0
    rows = np.hstack([slopes * ends / size, -np.ones((len(tangents), 1))])
    bounds = [(0, 1)] * len(ends) + [(None, None)]
    solution = linprog([0.0] * len(ends) + [1.0], rows, -offsets / size, bounds=bounds)
    return (float(solution.fun) * size, solution.x[:-1] * ends) if solution.status == 0 else (-np.inf, ends / 2)
