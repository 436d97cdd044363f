"""Who trains together: one process, or several that each take a part of every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Peers(Protocol):
    """Processes that go through the same steps; each has a ``rank`` from 0 to ``size`` - 1, and 0 writes files."""

    rank: int
    size: int

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each by its sum over all processes."""
        ...

    def agree(self, number: float) -> float:
        """What rank 0 says."""
        ...


class Alone:
    """One process."""

    rank, size = 0, 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to add."""

    def agree(self, number: float) -> float:
        """The number."""
        return number


class Group:
    """The default process group of torch.distributed.

    Gradients are added up in one all-reduce a step, after the last part of a batch.  DistributedDataParallel would
    begin while the gradients of earlier layers are computed; of a model of some thousand numbers that hides nothing,
    and it wants every process to have a part of every batch.

    Args:
        device: where tensors live.
    """

    def __init__(self, device: torch.device) -> None:
        from torch import distributed

        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self._device = device

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """See :class:`Peers`; in one message for each type of number."""
        from torch import distributed

        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # the same order in every process
            alike = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.detach().reshape(-1).to(self._device) for tensor in alike])
            distributed.all_reduce(flat)
            for tensor, summed in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.detach().copy_(summed.view_as(tensor))

    def agree(self, number: float) -> float:
        """See :class:`Peers`."""
        from torch import distributed

        said = torch.tensor([number], dtype=torch.float64, device=self._device)
        distributed.broadcast(said, src=0)
        return float(said)
