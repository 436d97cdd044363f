"""Processes of a training run: one, or several that each compute a part of every batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Peers(Protocol):
    """Processes that make the same steps together.

    Attributes:
        rank: index of this process, from 0 to ``size`` - 1; rank 0 writes the files.
        size: number of processes.
    """

    rank: int
    size: int

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        ...

    def broadcast(self, number: float) -> float:
        """Send ``number`` of rank 0 to all processes, and return it in each of them."""
        ...


class SingleProcess:
    """Peers of a training run in one process: this process alone."""

    rank = 0
    size = 1

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Leave the tensors unchanged: the sum over one process."""

    def broadcast(self, number: float) -> float:
        """Return ``number`` unchanged, since this process has rank 0."""
        return number


class ProcessGroup:
    """The default process group of torch.distributed.

    Gradients are summed in one all-reduce a step, after the last micro-batch.
    DistributedDataParallel overlaps communication with the computation of gradients, which gains
    nothing for a model of some thousand numbers, and it requires a part of every batch in every
    process.

    Args:
        device: device of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        from torch import distributed

        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._device = device

    def all_reduce_sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes; one message per float type."""
        from torch import distributed

        # The types are in the same order in every process.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            tensors_of_type = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat_sum = torch.cat(
                [tensor.detach().reshape(-1).to(self._device) for tensor in tensors_of_type]
            )
            distributed.all_reduce(flat_sum)
            for tensor, tensor_sum in zip(
                tensors_of_type,
                flat_sum.split([tensor.numel() for tensor in tensors_of_type]),
                strict=True,
            ):
                tensor.detach().copy_(tensor_sum.view_as(tensor))

    def broadcast(self, number: float) -> float:
        """Send ``number`` of rank 0 to all processes, and return it in each of them."""
        from torch import distributed

        value = torch.tensor([number], dtype=torch.float64, device=self._device)
        distributed.broadcast(value, src=0)
        return float(value)
