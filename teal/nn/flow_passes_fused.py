"""The passes of a universal FlowGNN over the paths, compiled, for inference: :class:`teal.nn.flow_passes.PathPasses`.

The same numbers as :class:`teal.nn.flow_passes.TorchPasses` to rounding.  Paths are visited source by source in the
packed layout, without padded slots.  A layer is one pass: it reads what the links say, moves the states, and adds up
what the links are told.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from teal.nn.flow_gnn_config import UNIVERSAL_WIDTHS
from teal.nn.flow_kernels import Answers, Demands, LinkInputs, Weights, even_loads, one_pass
from teal.nn.flow_passes import UTILISATION_OFFSET, PathEncoder, PathUpdate
from teal.pathops.padding import pad_paths
from teal.pathops.response import FAILED_WEIGHT
from teal.problem import Problem
from teal.problem.scale import mean_value
from teal.runtime.arrays import Float32Array
from teal.runtime.parallel import threads_for

_MIN_BLOCK_WORK = 20_000  # trie nodes and paths of a block of sources, at least
_MAX_BLOCKS = 16  # blocks of sources, each with sums of its own
_OPERATIONS_PER_NUMBER = 20  # scalar operations for each number of a state in a pass, approximately


class CompiledPasses:
    """See :class:`teal.nn.flow_passes.PathPasses`.

    Args:
        problem: B matrices, for which :meth:`accepts` is true.
        clamp: largest absolute value of an action.
    """

    def __init__(self, problem: Problem, clamp: float) -> None:
        self._problem, self._packed, self._clamp = problem, problem.paths.packed, np.float32(clamp)
        scan, packed, batch = self._packed.scan, self._packed, problem.batch
        self._block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        self._max_paths = int(np.diff(scan.path_ptr).max(initial=0))
        self._max_shares = int(np.diff(scan.path_ptr + scan.demand_ptr).max(initial=0))
        rejects = not problem.demand_set.carries_all
        unit = mean_value(problem).clamp(min=1e-30) if rejects else torch.ones(())
        value = problem.demand_value / unit if rejects else torch.zeros_like(problem.demand_value)
        cost = problem.link_cost / unit if rejects else torch.zeros_like(problem.link_cost)
        self._demands = Demands(_array(problem.demand), _array(value), _array(cost), rejects)
        self._is_dead = problem.capacity <= 0
        blocks = len(self._block_ptr) - 1
        sums = np.zeros((blocks, batch, 2 * packed.num_links), np.float32)
        with threads_for(2 * batch * (packed.num_nodes + packed.num_paths)):
            even_loads(
                self._demands.rate, _array(self._is_dead.to(torch.float32)), scan, self._block_ptr, packed.max_slots,
                sums,
            )  # fmt: skip
        even = torch.from_numpy(sums.sum(0))
        self.even_load, self.full_load = even[:, ::2], even[:, 1::2]
        self._answers: Answers | None = None
        self.sums = torch.zeros(0)

    @staticmethod
    def accepts(problem: Problem, width: int) -> bool:
        """Whether problem and width of the states are those that the kernels take."""
        on_cpu = problem.ops.backend.name == "numba" and problem.demand.dtype == torch.float32
        return on_cpu and problem.ops.is_over_paths and width in UNIVERSAL_WIDTHS

    @property
    def splits(self) -> Tensor:
        """(B, D, K) of the last pass."""
        assert self._answers is not None
        splits = torch.zeros(self._problem.batch, *self._problem.paths.leaf.shape)
        with threads_for(self._packed.num_paths * self._problem.batch):
            pad_paths(self._answers.share, self._packed.scan, splits.numpy())
        return splits

    def encode(self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor) -> None:
        """See :class:`teal.nn.flow_passes.PathPasses`."""
        width, batch, packed = weights.features.out_features, self._problem.batch, self._packed
        blocks = len(self._block_ptr) - 1
        self._answers = Answers(
            np.zeros((batch, packed.num_paths * width), np.float32), np.zeros((batch, packed.num_paths), np.float32),
            np.empty((blocks, batch, packed.num_links * 2), np.float32),
            np.empty((blocks, batch, packed.num_links * width), np.float32),
        )  # fmt: skip
        none = np.zeros(0, np.float32)
        layer = Weights(
            none, none, _rows(weights.features), _array(weights.features.bias), _array(weights.action.weight)[0],
            np.float32(float(weights.action.bias)), np.float32(float(sharpness)),
        )  # fmt: skip
        self._run(True, layer, price, np.zeros((batch, 0), np.float32), utilisation, width)

    def update(
        self, weights: PathUpdate, price: Tensor, sharpness: Tensor, message: Tensor, utilisation: Tensor
    ) -> None:
        """See :class:`teal.nn.flow_passes.PathPasses`."""
        layer = Weights(
            _rows(weights.own), _rows(weights.demand), _rows(weights.features), _array(weights.own.bias),
            _array(weights.action.weight)[0], np.float32(float(weights.action.bias)), np.float32(float(sharpness)),
        )  # fmt: skip
        self._run(False, layer, price, _array(message.flatten(1)), utilisation, weights.own.out_features)

    def _run(
        self, is_first: bool, layer: Weights, price: Tensor, message: Float32Array, utilisation: Tensor, width: int
    ) -> None:
        answers, packed = self._answers, self._packed
        assert answers is not None
        links = LinkInputs(
            _array(torch.where(self._is_dead, FAILED_WEIGHT, price)), _array((utilisation + UTILISATION_OFFSET).log()),
            _array(1 - 1 / utilisation.clamp(min=1)), message,
        )  # fmt: skip
        answers.pair[:] = 0
        answers.states[:] = 0
        with threads_for(_OPERATIONS_PER_NUMBER * packed.num_paths * width * self._problem.batch):
            one_pass(
                is_first, self._demands, links, _array(self._problem.capacity), layer, self._clamp, packed.scan,
                self._block_ptr, packed.max_slots, self._max_paths, self._max_shares, answers, (0,) * width,
            )  # fmt: skip
        shape = (self._problem.batch, packed.num_links, -1)
        both = (torch.from_numpy(part.sum(0)).view(shape) for part in (answers.pair, answers.states))
        self.sums = torch.cat(list(both), -1)


def _array(values: Tensor) -> Float32Array:
    return values.detach().to(torch.float32).contiguous().numpy()


def _rows(layer: nn.Linear) -> Float32Array:
    """Weights (inputs, outputs), flat."""
    return np.ascontiguousarray(_array(layer.weight).T).ravel()
