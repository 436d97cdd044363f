"""The hedge ``learned``: the default mixture, corrected for each demand by a model that serves any network.

See :mod:`teal.nn.hedge_gate`.  The checkpoint that comes with Teal was trained on random histories alone (``teal
pretrain-hedge``); no measured series was among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from teal.nn.checkpoint import load_hedge_gate
from teal.nn.hedge_gate import HedgeGate, gate_inputs
from teal.runtime.storage import model_folder
from teal.schemes.hedges.mixture import Mixture, default_mixture
from teal.schemes.hedges.past import Past
from teal.schemes.hedges.residual import Residual
from teal.spec import Spec

MODEL = Path("hedge")  # the checkpoint that comes with Teal
HISTORY = 144  # newest matrices that the model sees
_LONG, _SHORT = 36, 12  # matrices in its sets of scenarios


class Learned:
    """See the module.

    Args:
        model: the gate.
        mixture: whose splits it corrects.
    """

    def __init__(self, model: HedgeGate, mixture: Mixture) -> None:
        self._model, self._mixture = model, mixture

    @torch.no_grad()
    def allocate(self, past: Past) -> Tensor:
        """See Hedge."""
        decisions = self._mixture.decisions(past)
        recent = past.last(past.most(HISTORY))
        weights, recent_losses = (
            torch.from_numpy(values).to(torch.float32)
            for values in (self._mixture.weights, self._mixture.recent_losses)
        )
        single = recent.row(0).to(torch.float32)
        in_float32 = decisions.to(torch.float32)
        inputs = gate_inputs(
            single, recent.demand.to(torch.float32), scenario_sets(recent.demand, past.lead), in_float32, weights,
            recent_losses,
        )  # fmt: skip
        return self._model(inputs, in_float32).to(torch.float64)


def scenario_sets(recent: Tensor, lead: int) -> Sequence[Tensor]:
    """The sets of scenarios of the model: the newest matrix, the last ones, and a forecast with its past errors.

    Args:
        recent: (T, D) the newest matrices, oldest first, Gbit/s, float64.
        lead: intervals from the newest one to the one that is allocated for.
    """
    forecast = torch.from_numpy(Residual(_LONG).scenarios(recent.numpy(), lead))
    return [part.to(torch.float32) for part in (recent[-1:], recent[-_SHORT:], recent[-_LONG:], forecast)]


def make(spec: Spec, model: Path | None) -> Learned:
    """``learned``, with the model of ``--model`` or the one that comes with Teal."""
    spec.parse_options()
    gate, _ = load_hedge_gate(model_folder(model or MODEL))
    return Learned(gate, default_mixture())
