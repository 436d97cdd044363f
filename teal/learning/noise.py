"""Random numbers for training that do not depend on how a batch is divided over micro-batches or
processes.
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
_HALF_BITS = 32  # of a uniform number


class Noise(Protocol):
    """A source of standard normal numbers."""

    def normal(self, like: Tensor) -> Tensor:
        """Independent standard normal numbers with shape (B, ...), type and device of ``like``."""
        ...


class Stream:
    """One random stream for all rows.

    Args:
        seed: seed of the stream.
        device: device of the tensors that will be requested.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, like: Tensor) -> Tensor:
        """Normal numbers, as in :meth:`Noise.normal`."""
        return torch.randn(
            like.shape, generator=self._generator, dtype=like.dtype, device=like.device
        )


def row_seeds(seed: int, step: int, rows: Sequence[int]) -> Int64Array:
    """(B,) seeds of the streams of the matrices in ``rows``, of a run's seed and optimiser step."""
    states = [
        np.random.SeedSequence([seed, step, row]).generate_state(1, np.uint64) for row in rows
    ]
    return np.concatenate(states).view(np.int64)


class RowStreams:
    """A random stream for each row of a batch, the same in whichever process the row is, and on
    whichever device to rounding.

    The numbers of a row are those of SplitMix64 from its seed, two uniform ones of 32 bits of each,
    and normal ones by the method of Box and Muller.  All are functions of seed and place, so that
    recorded launches give others as soon as the seeds are others.

    Args:
        seeds: (B,) int64 of the rows, as :func:`row_seeds` gives them, on the device of the tensors
            that will be requested.
    """

    def __init__(self, seeds: Tensor) -> None:
        self._seeds = seeds
        self._num_drawn = 0  # numbers of 64 bits, of each stream

    def normal(self, like: Tensor) -> Tensor:
        """Normal numbers, as in :meth:`Noise.normal`."""
        count = math.prod(like.shape[1:])
        # Each number of 64 bits gives two: a cosine and a sine.
        pairs = -(-count // 2)
        counters = torch.arange(1, pairs + 1, device=like.device) + self._num_drawn
        self._num_drawn += pairs
        bits = _mixed(self._seeds[:, None] + counters * _GAMMA)
        scale = 2.0**-_HALF_BITS
        radius = (_shifted(bits, _HALF_BITS) + 1).to(like.dtype).mul_(scale)  # in (0, 1]
        radius = radius.log_().mul_(-2).sqrt_()
        angle = (bits & (2**_HALF_BITS - 1)).to(like.dtype).mul_(2 * math.pi * scale)
        values = torch.cat([radius * angle.cos(), radius * angle.sin()], 1)
        return values[:, :count].reshape(like.shape)


def _mixed(bits: Tensor) -> Tensor:
    """The function mix64 of SplitMix64."""
    bits = (bits ^ _shifted(bits, 30)) * _FACTORS[0]
    bits = (bits ^ _shifted(bits, 27)) * _FACTORS[1]
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """Bits shifted right by ``count``, with zeros from the left."""
    return (bits >> count) & (2 ** (_BITS - count) - 1)
