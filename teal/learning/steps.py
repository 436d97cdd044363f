"""Optimiser steps: the update of the weights, and the gradients of a batch on one network, part by
part.

On a GPU the steps on one network are recorded once for parts of a size, and replayed: a pass and
its gradients are a thousand small launches, between which the GPU would wait for the host.  The
host copies the demands and seeds of a part in, and reads one record a step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import teal.runtime.cuda as cuda
from teal.errors import InputError
from teal.learning.losses import has_demand
from teal.learning.noise import Noise, RowStreams
from teal.learning.peers import Peers
from teal.learning.train_tasks import TrainTask
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.problem.fixed import FixedProgram, ProgramShape
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lru_cache import LruCache
from teal.solvers.pdhg.samples import sample

_MOST_GRAPHS = 100  # for parts of a size: PriceGNN has 81 pairs of numbers of rounds
_STREAMS = 2**31  # random streams of samples


def clipped_step(
    optimiser: Adam, model: nn.Module, max_norm: float, step: int, losses: Tensor
) -> list[float]:
    """Make one step of the optimiser with a gradient of at most ``max_norm``, in the Euclidean
    norm.

    Args:
        optimiser: optimiser of the model.
        model: model whose parameters have gradients.
        max_norm: longer gradients are shortened to it.
        step: number of the step, for the message.
        losses: (terms,) losses of the step, which the host reads together with the norm.

    Returns:
        The losses.

    Raises:
        InputError: a loss or the gradient of this step is not finite; no weight has changed.
    """
    record = record_of(model, losses)
    finite = finite_losses(record, step)
    optimiser.prepare()
    update(optimiser, model, max_norm, record)
    return finite


def record_of(model: nn.Module, losses: Tensor) -> Tensor:
    """(terms + 1,) losses, and the norm of the gradient."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return torch.cat([losses, norm.to(losses).reshape(1)])


def finite_losses(record: Tensor, step: int) -> list[float]:
    """The losses of a record; the only numbers of a step that the host waits for.

    Raises:
        InputError: a number is not finite.
    """
    *losses, norm = record.tolist()
    for name, numbers in (("loss", losses), ("gradient", [norm])):
        if not all(map(math.isfinite, numbers)):
            expected = f"a finite {name}; try a lower --learning-rate"
            raise InputError("training", f"step {step}", expected, numbers)
    return losses


def update(optimiser: Adam, model: nn.Module, max_norm: float, record: Tensor) -> None:
    """Shorten the gradient, whose norm the record has, and change the weights; waits for
    nothing.
    """
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    norm = record[-1].to(weights[0].dtype)
    torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    optimiser.change()


class Matrices(NamedTuple):
    """Matrices to learn from, on the CPU.

    Attributes:
        demand: (B, D) Gbit/s, as measured.
        seeds: (B,) seeds of their random streams.
    """

    demand: Tensor
    seeds: Tensor

    @classmethod
    def of(cls, demand: FloatArray, seeds: Int64Array, like: Tensor) -> Matrices:
        """Matrices of arrays, in the type of a tensor; for a GPU in memory from which it copies
        them while the host goes on.
        """
        # NumPy's conversion: the thread that reads ahead would start threads of torch of its own.
        numbers = demand.astype(np.float32 if like.dtype == torch.float32 else np.float64)
        matrices = cls(torch.from_numpy(numbers), torch.from_numpy(seeds))
        return cls(*(tensor.pin_memory() for tensor in matrices)) if like.is_cuda else matrices


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """The changes by which a measured matrix becomes one to learn from.

    Attributes:
        deviation: each demand is multiplied by log-normal noise of this standard deviation and
            mean 1.
        sample: demands that are then drawn (:mod:`teal.learning.train`); 0 for all.
    """

    deviation: float
    sample: int

    def noisy(self, demand: Tensor, noise: Noise) -> Tensor:
        """(B, D) demands with noise."""
        if not self.deviation:
            return demand
        exponent = self.deviation * noise.normal(demand) - self.deviation**2 / 2
        return demand * torch.exp(exponent)


class Steps:
    """Steps over batches that come in parts.

    Args:
        problem: network, paths and objective, in the type of the model and on its device.
        task: model and losses.
        optimiser: optimiser of the model.
        augmentation: changes of the measured matrices.

    A step is :meth:`begin`, :meth:`add` for each part, :meth:`finish`.
    """

    def __init__(
        self, problem: Problem, task: TrainTask, optimiser: Adam, augmentation: Augmentation
    ) -> None:
        self._problem = problem
        self._task = task
        self._optimiser = optimiser
        self._augmentation = augmentation
        device = problem.demand.device
        self._losses = torch.zeros(len(task.loss_names), dtype=torch.float64, device=device)
        self._count = torch.ones((), dtype=torch.float64, device=device)
        self._record = torch.zeros(len(task.loss_names) + 1, dtype=torch.float64, device=device)
        self._is_recorded = not augmentation.sample and FixedProgram.accepts(problem)
        self._places: dict[int, _Place] = {}  # by size of the part
        self._pool = cuda.memory_pool() if self._is_recorded else None
        self._measuring = cuda.LaunchGraph(device)  # of losses and norm
        self._updating = cuda.LaunchGraph(device)
        if self._is_recorded:
            self._shape = ProgramShape.of(problem)

    def begin(self, count: int) -> None:
        """Begin a step over ``count`` matrices, of all processes."""
        self._count.fill_(count)
        self._losses.zero_()
        weights = list(self._task.model.parameters())
        for weight in weights:
            if weight.grad is None:  # also without a part of this batch, which contributes 0
                weight.grad = torch.zeros_like(weight)
        torch._foreach_zero_([weight.grad for weight in weights if weight.grad is not None])

    def add(self, matrices: Matrices, number: int) -> None:
        """Add the losses and gradients of a part.

        Args:
            matrices: the part.
            number: number of the step.
        """
        problem = self._problem
        form = self._task.form(number)
        if not self._is_recorded or form is None:
            streams = RowStreams(matrices.seeds.to(problem.demand.device))
            noisy = self._augmentation.noisy(matrices.demand.to(problem.demand), streams)
            size = self._augmentation.sample
            if size:
                program = sampled(problem, noisy, size, int(matrices.seeds[0]) % _STREAMS)
            else:
                program = problem.with_demand(noisy)
            self._add(program, streams, number)
            return
        batch = len(matrices.demand)
        if batch not in self._places:
            self._places[batch] = self._new_place(batch)
        graph_slot = self._places[batch]
        graph_slot.run(matrices, form, partial(self._add_from, graph_slot, number))

    def _new_place(self, batch: int) -> _Place:
        nothing = self._problem.demand.new_zeros(batch, self._problem.paths.num_demands)
        problem = self._problem.with_demand(nothing)
        shape = dataclasses.replace(self._shape, batch=batch)
        program = FixedProgram(problem, shape, nothing.dtype)
        program.take(problem)
        return _Place(program, batch, self._pool)

    def _add_from(self, graph_slot: _Place, number: int) -> None:
        """:meth:`add` of the part in a place."""
        streams = RowStreams(graph_slot.seeds)
        noisy = self._augmentation.noisy(graph_slot.program.demand, streams)
        self._add(graph_slot.program.problem().with_demand(noisy), streams, number)

    def _add(self, problem: Problem, noise: Noise, number: int) -> None:
        """The losses of a part and their gradients, without waiting for a GPU."""
        is_counted = has_demand(problem)
        with _matrix_products(problem.demand.device):
            by_name = self._task.losses(problem, noise, number)
            terms = [
                torch.where(is_counted, by_name[name], 0).sum() for name in self._task.loss_names
            ]
            losses = torch.stack(terms) / self._count
            losses.sum().backward()
        self._losses += losses.detach()

    def finish(self, number: int, peers: Peers) -> dict[str, float]:
        """Change the weights; the mean losses by name.

        Args:
            number: number of the step.
            peers: the processes that train together.

        Raises:
            InputError: a loss or a gradient is not finite.
        """
        model = self._task.model
        limit = self._task.max_gradient_norm
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        peers.all_reduce_sum([self._losses, *gradients])
        self._measuring.run(lambda: self._record.copy_(record_of(model, self._losses)))
        losses = finite_losses(self._record, number)
        self._optimiser.prepare()
        self._updating.run(lambda: update(self._optimiser, model, limit, self._record))
        return dict(zip(self._task.loss_names, losses, strict=True))


@contextlib.contextmanager
def _matrix_products(device: torch.device) -> Iterator[None]:
    """Products of matrices in TF32 on a GPU, which change a trained model less than another seed
    does (``benchmarks/precision.py``).
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Place:
    """The place of parts of a size, and the graphs that add their losses and gradients.

    Args:
        program: place of the matrices.
        batch: B.
        pool: memory of the graphs of a training.

    Attributes:
        program: place of the matrices.
        seeds: (B,) place of the seeds.
    """

    def __init__(self, program: FixedProgram, batch: int, pool: object) -> None:
        self.program = program
        self.seeds = torch.zeros(batch, dtype=torch.int64, device=program.device)
        self._pool = pool
        self._graphs = LruCache[Hashable, cuda.LaunchGraph](_MOST_GRAPHS)

    def run(self, matrices: Matrices, form: Hashable, work: Callable[[], None]) -> None:
        """Copy a part in, and do the work, which is the same for parts of a form."""
        self.program.take_demand(matrices.demand)
        self.seeds.copy_(matrices.seeds, non_blocking=True)
        graph = self._graphs.take(form) or cuda.LaunchGraph(self.program.device, self._pool)
        graph.run(work)
        self._graphs.keep(form, graph)


def sampled(problem: Problem, demand: Tensor, size: int, stream: int) -> Problem:
    """About ``size`` demands of one matrix at their raised rates, B = 1, in the type of
    ``problem``.

    Args:
        problem: network, paths and objective.
        demand: (1, D) Gbit/s.
        size: expected number.
        stream: number of the random stream.
    """
    return sample.draw(problem.with_demand(demand), size, stream=stream).problem.to(
        problem.demand.dtype
    )
