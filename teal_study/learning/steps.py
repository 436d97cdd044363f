"""Optimiser steps on one network: gradients accumulated over micro-batches, clipping, Adam update.

Main class: :class:`Steps`.  On a GPU the work of a micro-batch is recorded once per size as a CUDA
graph, and replayed: a pass and its gradients are a thousand small launches, between which the GPU
would wait for the host.  The host copies demands and seeds of a micro-batch to the GPU, and reads
losses and gradient norm once per step.
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
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.problem.fixed import FixedProgram, ProgramShape
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.lru_cache import LruCache
from teal.solvers.pdhg.samples import sample
from teal_study.learning.losses import has_demand
from teal_study.learning.noise import Noise, RowStreams
from teal_study.learning.peers import Peers
from teal_study.learning.train_tasks import TrainTask

# Maximum number of graphs per size of a micro-batch: PriceGNN has 81 pairs of numbers of rounds.
_MAX_GRAPHS = 100
# Number of random streams of samples.
_NUM_SAMPLE_STREAMS = 2**31


def clipped_step(
    optimiser: Adam, model: nn.Module, max_norm: float, step: int, losses: Tensor
) -> list[float]:
    """Clip the gradient to a Euclidean norm, and make one optimiser step.

    Args:
        optimiser: optimiser of the model.
        model: model whose parameters have gradients.
        max_norm: maximum norm of the gradient; larger gradients are scaled down.
        step: index of the step, for messages.
        losses: (terms,) losses of the step, which the host reads together with the norm.

    Returns:
        The losses, as numbers.

    Raises:
        InputError: a loss or the gradient is not finite; the weights are unchanged.
    """
    record = loss_record(model, losses)
    loss_values = finite_losses(record, step)
    optimiser.prepare()
    update(optimiser, model, max_norm, record)
    return loss_values


def loss_record(model: nn.Module, losses: Tensor) -> Tensor:
    """Return the losses and the Euclidean norm of the gradient, (terms + 1,).

    Args:
        model: model whose parameters have gradients.
        losses: (terms,) losses.
    """
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    return torch.cat([losses, norm.to(losses).reshape(1)])


def finite_losses(record: Tensor, step: int) -> list[float]:
    """Return the losses of a record; the only transfer from the GPU in a step.

    Args:
        record: (terms + 1,) losses, and norm of the gradient.
        step: index of the step, for messages.

    Raises:
        InputError: a loss or the norm is not finite.
    """
    *losses, norm = record.tolist()
    for name, numbers in (("loss", losses), ("gradient", [norm])):
        if not all(map(math.isfinite, numbers)):
            fault = f"the {name} is not finite: {numbers}"
            raise InputError.invalid(
                "training", f"step {step}", fault, "try a lower --learning-rate"
            )
    return losses


def update(optimiser: Adam, model: nn.Module, max_norm: float, record: Tensor) -> None:
    """Clip the gradient and update the weights, without waiting for a GPU.

    Args:
        optimiser: optimiser of the model.
        model: model whose parameters have gradients.
        max_norm: maximum norm of the gradient.
        record: (terms + 1,) its last entry is the norm of the gradient.
    """
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    norm = record[-1].to(weights[0].dtype)
    torch.nn.utils.clip_grads_with_norm_(weights, max_norm, norm)
    optimiser.change()


class Matrices(NamedTuple):
    """Micro-batch of B training matrices, on the CPU.

    Attributes:
        demand: (B, D) Gbit/s, before augmentation.
        seeds: (B,) seeds of the random streams of the matrices.
    """

    demand: Tensor
    seeds: Tensor

    @classmethod
    def of(cls, demand: FloatArray, seeds: Int64Array, like: Tensor) -> Matrices:
        """Convert arrays to a micro-batch, in pinned memory if it is for a GPU.

        Args:
            demand: (B, D) Gbit/s.
            seeds: (B,) seeds of the random streams.
            like: tensor with the type and device of the training problem.
        """
        # Converted by NumPy: in the thread that reads ahead torch would start further threads.
        rates = demand.astype(np.float32 if like.dtype == torch.float32 else np.float64)
        matrices = cls(torch.from_numpy(rates), torch.from_numpy(seeds))
        return cls(*(tensor.pin_memory() for tensor in matrices)) if like.is_cuda else matrices


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Data augmentation of training matrices.

    Attributes:
        deviation: standard deviation, in the logarithm, of the log-normal noise with mean 1 that
            multiplies each demand.
        sample: number of demands that are then sampled; 0 for all.
    """

    deviation: float
    sample: int

    def noisy(self, demand: Tensor, noise: Noise) -> Tensor:
        """Multiply demands (B, D) by log-normal noise exp(s N(0, 1) - s^2 / 2), s = deviation."""
        if not self.deviation:
            return demand
        exponent = self.deviation * noise.normal(demand) - self.deviation**2 / 2
        return demand * torch.exp(exponent)


class Steps:
    """Optimiser steps with gradients accumulated over micro-batches.

    A step is :meth:`begin`, then :meth:`add` for each micro-batch, then :meth:`finish`.

    Args:
        problem: network, paths and objective, in the type of the model and on its device.
        task: model and losses.
        optimiser: optimiser of the model.
        augmentation: augmentation of the training matrices.
    """

    def __init__(
        self, problem: Problem, task: TrainTask, optimiser: Adam, augmentation: Augmentation
    ) -> None:
        self._problem = problem
        self._task = task
        self._optimiser = optimiser
        self._augmentation = augmentation
        device = problem.demand.device
        # (terms,) losses of the step, number of its matrices, and (terms + 1,) losses and norm.
        self._losses = torch.zeros(len(task.loss_names), dtype=torch.float64, device=device)
        self._num_matrices = torch.ones((), dtype=torch.float64, device=device)
        self._record = torch.zeros(len(task.loss_names) + 1, dtype=torch.float64, device=device)
        self._can_record = not augmentation.sample and FixedProgram.accepts(problem)
        # Fixed GPU memory and graphs, by number of matrices of the micro-batch.
        self._memory_by_batch_size: dict[int, _GraphMemory] = {}
        self._pool = cuda.memory_pool() if self._can_record else None
        # CUDA graphs of two works: filling the record of losses and norm, and updating the weights.
        self._record_graph = cuda.LaunchGraph(device)
        self._update_graph = cuda.LaunchGraph(device)
        if self._can_record:
            self._shape = ProgramShape.of(problem)

    def begin(self, num_matrices: int) -> None:
        """Begin a step: set losses and gradients to 0.

        Args:
            num_matrices: number of matrices of the step in all processes, the divisor of the
                losses.
        """
        self._num_matrices.fill_(num_matrices)
        self._losses.zero_()
        weights = list(self._task.model.parameters())
        for weight in weights:
            # A process without a part of this batch contributes gradients of 0.
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        torch._foreach_zero_([weight.grad for weight in weights if weight.grad is not None])

    def add(self, matrices: Matrices, step_index: int) -> None:
        """Add the losses and gradients of a micro-batch.

        Args:
            matrices: the micro-batch.
            step_index: index of the step.
        """
        problem = self._problem
        # Key of the kernel launches of this step: equal keys have equal launches; None if they
        # cannot be recorded.
        launch_key = self._task.form(step_index)
        # Launch by launch, if the work cannot be recorded.
        if not self._can_record or launch_key is None:
            streams = RowStreams(matrices.seeds.to(problem.demand.device))
            noisy_demand = self._augmentation.noisy(matrices.demand.to(problem.demand), streams)
            sample_size = self._augmentation.sample
            if sample_size:
                augmented_problem = sampled(
                    problem, noisy_demand, sample_size, int(matrices.seeds[0]) % _NUM_SAMPLE_STREAMS
                )
            else:
                augmented_problem = problem.with_demand(noisy_demand)
            self._add_gradients(augmented_problem, streams, step_index)
            return
        # Recorded: copy the micro-batch to fixed memory, and replay the graph.
        batch_size = len(matrices.demand)
        if batch_size not in self._memory_by_batch_size:
            self._memory_by_batch_size[batch_size] = self._new_memory(batch_size)
        graph_memory = self._memory_by_batch_size[batch_size]
        graph_memory.run(
            matrices, launch_key, partial(self._add_from_memory, graph_memory, step_index)
        )

    def _new_memory(self, batch: int) -> _GraphMemory:
        """Allocate GPU memory for micro-batches of ``batch`` matrices, with demands of 0."""
        zeros = self._problem.demand.new_zeros(batch, self._problem.paths.num_demands)
        problem = self._problem.with_demand(zeros)
        shape = dataclasses.replace(self._shape, batch=batch)
        program = FixedProgram(problem, shape, zeros.dtype)
        program.take(problem)
        return _GraphMemory(program, batch, self._pool)

    def _add_from_memory(self, graph_memory: _GraphMemory, step_index: int) -> None:
        """Add the losses and gradients of the micro-batch in GPU memory.

        Args:
            graph_memory: demands and seeds of the micro-batch.
            step_index: index of the step.
        """
        streams = RowStreams(graph_memory.seeds)
        noisy_demand = self._augmentation.noisy(graph_memory.program.demand, streams)
        self._add_gradients(
            graph_memory.program.problem().with_demand(noisy_demand), streams, step_index
        )

    def _add_gradients(self, problem: Problem, noise: Noise, step_index: int) -> None:
        """Add the losses of a micro-batch and their gradients, without waiting for a GPU.

        Args:
            problem: the matrices, after augmentation.
            noise: random numbers of the matrices.
            step_index: index of the step.
        """
        # Matrices without demand do not count.
        is_counted = has_demand(problem)
        with _tf32_matrix_products(problem.demand.device):
            losses_by_name = self._task.losses(problem, noise, step_index)
            terms = [
                torch.where(is_counted, losses_by_name[name], 0).sum()
                for name in self._task.loss_names
            ]
            losses = torch.stack(terms) / self._num_matrices
            losses.sum().backward()
        self._losses += losses.detach()

    def finish(self, step_index: int, peers: Peers) -> dict[str, float]:
        """Sum gradients over all processes, clip them, and update the weights.

        Args:
            step_index: index of the step.
            peers: processes that train together.

        Returns:
            Mean losses by name.

        Raises:
            InputError: a loss or a gradient is not finite.
        """
        model = self._task.model
        max_norm = self._task.max_gradient_norm
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        peers.all_reduce_sum([self._losses, *gradients])
        self._record_graph.run(lambda: self._record.copy_(loss_record(model, self._losses)))
        losses = finite_losses(self._record, step_index)
        self._optimiser.prepare()
        self._update_graph.run(lambda: update(self._optimiser, model, max_norm, self._record))
        return dict(zip(self._task.loss_names, losses, strict=True))


@contextlib.contextmanager
def _tf32_matrix_products(device: torch.device) -> Iterator[None]:
    """Use TF32 matrix products in the block, on a GPU.

    They change a trained model less than another seed does (``benchmarks/precision.py``).
    """
    if device.type != "cuda":
        yield
        return
    previous_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous_precision)


class _GraphMemory:
    """Fixed GPU memory for micro-batches of one size, and the CUDA graphs that read it.

    Args:
        program: GPU memory of the matrices.
        batch: B, number of matrices.
        pool: memory pool of all graphs of a training run.

    Attributes:
        program: GPU memory of the matrices.
        seeds: (B,) GPU memory of the seeds.
    """

    def __init__(self, program: FixedProgram, batch: int, pool: object) -> None:
        self.program = program
        self.seeds = torch.zeros(batch, dtype=torch.int64, device=program.device)
        self._pool = pool
        self._graphs = LruCache[Hashable, cuda.LaunchGraph](_MAX_GRAPHS)

    def run(self, matrices: Matrices, launch_key: Hashable, work: Callable[[], None]) -> None:
        """Copy a micro-batch to the GPU, and run the work, recorded once per form.

        Args:
            matrices: the micro-batch.
            launch_key: key of the work: equal forms have equal launches.
            work: launches that read ``program`` and ``seeds``.
        """
        self.program.take_demand(matrices.demand)
        self.seeds.copy_(matrices.seeds, non_blocking=True)
        graph = self._graphs.take(launch_key) or cuda.LaunchGraph(self.program.device, self._pool)
        graph.run(work)
        self._graphs.keep(launch_key, graph)


def sampled(problem: Problem, demand: Tensor, size: int, stream: int) -> Problem:
    """Return the problem of a sample of one matrix's demands, B = 1, in the type of ``problem``.

    Demand d is drawn with a probability pi[d] that grows with its rate, and has the rate
    demand[d] / pi[d].

    Args:
        problem: network, paths and objective.
        demand: (1, D) Gbit/s.
        size: expected number of sampled demands.
        stream: index of the random stream.
    """
    return sample.draw(problem.with_demand(demand), size, stream=stream).problem.to(
        problem.demand.dtype
    )
