"""Random numbers for training that do not depend on how a batch is divided over micro-batches or
processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


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


class RowStreams:
    """A random stream for each row of a batch, seeded by (seed, step, row): the same in whichever
    process the row is.

    Args:
        seed: seed of the run.
        step: optimiser step.
        rows: row numbers of the B matrices, in the order of the tensors that will be requested.
        device: device of those tensors.
    """

    def __init__(
        self, seed: int, step: int, rows: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        self._generators = [
            torch.Generator(device).manual_seed(
                int(np.random.SeedSequence([seed, step, row]).generate_state(1)[0])
            )
            for row in rows
        ]

    def whole_number(self) -> int:
        """A random number from 0 to 2^31 - 1 for the first row."""
        generator = self._generators[0]
        return int(torch.randint(2**31, (1,), generator=generator, device=generator.device))

    def normal(self, like: Tensor) -> Tensor:
        """Normal numbers, as in :meth:`Noise.normal`."""
        shape, dtype, device = like.shape[1:], like.dtype, like.device
        rows = [
            torch.randn(shape, generator=one, dtype=dtype, device=device)
            for one in self._generators
        ]
        return torch.stack(rows)
