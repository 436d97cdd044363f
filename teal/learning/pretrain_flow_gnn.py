"""What is particular to the training of a universal FlowGNN on many networks: its shapes, its loss, its checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from teal.config import PretrainConfig
from teal.learning.coma import Exploration, coma_loss
from teal.learning.losses import bound_loss, reward, reward_scale
from teal.learning.noise import Stream
from teal.nn import checkpoint
from teal.nn.flow_gnn_config import UNIVERSAL, FlowGnnConfig
from teal.nn.universal_flow_gnn import UniversalFlowGnn
from teal.problem import Problem
from teal.runtime.storage import model_folder

_TENTATIVE_PASSES = 3  # passes before the last one whose rewards are part of the loss
_TENTATIVE_WEIGHT = 1 / 16  # of each of them, beside 1 for the last pass


class FlowGnnTask:
    """See :class:`teal.learning.pretrain.PretrainTask`.

    Args:
        config: the settings.
    """

    scheme, max_gradient_norm = "teal", 0.3

    def __init__(self, config: PretrainConfig) -> None:
        self._config = config

    def new_model(self) -> nn.Module:
        """A universal FlowGNN with random weights, or those to start from.

        Raises:
            InputError: what to start from is of another form.
        """
        config = self._config
        if config.from_ == "none":
            return UniversalFlowGnn(FlowGnnConfig(config.num_paths, config.layers, config.width, UNIVERSAL))
        folder = model_folder(Path(config.from_))
        model, card = checkpoint.load_flow_gnn(folder)
        checkpoint.check_is_universal(card, folder)
        return model.train()

    def loss(self, model: nn.Module, problem: Problem, rng: np.random.Generator) -> Tensor:
        """() mean loss of the matrices: rewards of the last passes, or COMA* of the last one, and the bound."""
        assert isinstance(model, UniversalFlowGnn)
        config, scale = self._config, reward_scale(problem)
        actions, prices = model.tentative(problem)
        total = bound_loss(problem, prices) / scale
        for tentative in actions[-1 - _TENTATIVE_PASSES : -1]:
            total = total - _TENTATIVE_WEIGHT * reward(problem, model.splits(tentative, problem)) / scale
        if config.learner == "direct":
            total = total - reward(problem, model.splits(actions[-1], problem)) / scale
        else:
            exploration = Exploration(config.std, entries=config.entries, clamp=model.clamp)
            noise = Stream(int(rng.integers(2**31)), problem.demand.device)
            means = torch.where(problem.path_mask, actions[-1], 0)
            total = total + coma_loss(problem, means, exploration, noise) / scale
        return total.mean()

    def save(self, out: Path, model: nn.Module, **fields: object) -> None:
        """Write the checkpoint; ``fields`` are those of the card that say how it was made."""
        assert isinstance(model, UniversalFlowGnn)
        card = checkpoint.FlowGnnCard(
            model.config, checkpoint.ANY, 0.0, checkpoint.ANY, "", self._config.learner,
            entries=self._config.entries, **fields,  # type: ignore[arg-type]
        )  # fmt: skip
        checkpoint.save_flow_gnn(out, model, card)
