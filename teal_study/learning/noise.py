"""Random numbers for training, independent of the division of a batch into micro-batches and
processes.

:class:`RowStreams` is a counter-based generator (SplitMix64) with one stream per matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from teal.runtime.arrays import Int64Array

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, figures 16 and 17), as signed integers.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_BITS = 64
# Bits of a uniform number.
_HALF_BITS = 32


class Noise(Protocol):
    """Source of standard normal random numbers for a batch of matrices."""

    def normal(self, like: Tensor) -> Tensor:
        """Return independent standard normal numbers, with shape (B, ...), type and device of
        ``like``.
        """
        ...


class Stream:
    """Source of normal random numbers from one random stream for all rows of a batch.

    Args:
        seed: seed of the stream.
        device: device of the tensors that will be requested.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers, with shape, type and device of ``like``."""
        return torch.randn(
            like.shape, generator=self._generator, dtype=like.dtype, device=like.device
        )


def row_seeds(seed: int, step: int, rows: Sequence[int]) -> Int64Array:
    """Return the seed of each matrix's random stream, (B,), a hash of (seed, step, row).

    Args:
        seed: seed of the run.
        step: index of the optimiser step.
        rows: indices of the matrices.
    """
    states = [
        np.random.SeedSequence([seed, step, row]).generate_state(1, np.uint64) for row in rows
    ]
    return np.concatenate(states).view(np.int64)


class RowStreams:
    """One random stream per row of a batch, equal in all processes, and on all devices to rounding.

    SplitMix64 from the seed of a row gives 64-bit numbers; the halves of each are two uniform
    numbers, from which the Box-Muller transform makes two normal ones.  All numbers are functions
    of seed and counter, so that a recorded launch gives new numbers for new seeds.

    Args:
        seeds: (B,) int64 seeds of the rows (:func:`row_seeds`), on the device of the tensors to be
            drawn.
    """

    def __init__(self, seeds: Tensor) -> None:
        self._seeds = seeds
        # 64-bit numbers that have been drawn from each stream.
        self._num_drawn = 0

    def normal(self, like: Tensor) -> Tensor:
        """Return standard normal numbers, with shape (B, ...), type and device of ``like``."""
        numbers_per_row = math.prod(like.shape[1:])
        # Each number of 64 bits gives a pair of normal numbers: by a cosine and by a sine.
        pairs = -(-numbers_per_row // 2)
        counters = torch.arange(1, pairs + 1, device=like.device) + self._num_drawn
        self._num_drawn += pairs
        bits = _mixed(self._seeds[:, None] + counters * _GAMMA)
        scale = 2.0**-_HALF_BITS
        # Box-Muller: radius sqrt(-2 log u), u in (0, 1], from the upper half of the bits, and angle
        # from the lower half.
        radius = (_shifted(bits, _HALF_BITS) + 1).to(like.dtype).mul_(scale)
        radius = radius.log_().mul_(-2).sqrt_()
        angle = (bits & (2**_HALF_BITS - 1)).to(like.dtype).mul_(2 * math.pi * scale)
        normal_numbers = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)
        return normal_numbers[:, :numbers_per_row].reshape(like.shape)


def _mixed(bits: Tensor) -> Tensor:
    """Return mix64 of SplitMix64, elementwise."""
    bits = (bits ^ _shifted(bits, 30)) * _FACTORS[0]
    bits = (bits ^ _shifted(bits, 27)) * _FACTORS[1]
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Shift signed 64-bit integers right by ``count`` bits, with zeros from the left."""
    return (bits >> count) & (2 ** (_BITS - count) - 1)
