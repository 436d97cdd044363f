"""The hedge ``learned``: the default mixture, corrected for each demand by a model that serves any
network.

See :mod:`teal.nn.hedge_gate`.  The checkpoint that comes with Teal was trained on random histories
alone (``teal pretrain --model hedge``); no measured series was among them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from teal.nn.checkpoint import load_hedge_gate
from teal.nn.hedge_gate import GateInputs, HedgeGate, gate_inputs
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.shapes import Float
from teal.runtime.storage import model_folder
from teal.schemes.past import Past
from teal.spec import Spec
from teal_next.mixture import Mixture, default_mixture
from teal_next.residual import Residual

MODEL = Path("hedge")  # the checkpoint that comes with Teal
HISTORY = 144  # newest matrices that the model sees
_LONG_WINDOW, _SHORT_WINDOW = 36, 12  # matrices in its sets of scenarios


class Learned:
    """The hedge ``learned`` (equations in the module).

    Args:
        model: the gate.
        mixture: mixture whose splits it corrects.
    """

    def __init__(self, model: HedgeGate, mixture: Mixture) -> None:
        self._model, self._mixture = model, mixture

    @torch.no_grad()
    def allocate(self, past: Past) -> Tensor:
        """Splits for the next interval, as in :meth:`Hedge.allocate`."""
        decisions = self._mixture.decisions(past).to(torch.float32)
        recent = past.last(past.most(HISTORY))
        single = recent.row(0).to(torch.float32)
        weights, losses = self._mixture.weights, self._mixture.recent_losses
        inputs = model_inputs(single, recent.demand, past.lead, decisions, weights, losses)
        return self._model(inputs, decisions).to(torch.float64)


def model_inputs(
    problem: Problem,
    recent: Float[Tensor, "T D"],
    lead: int,
    decisions: Float[Tensor, "H D K"],
    weights: FloatArray,
    recent_losses: FloatArray,
) -> GateInputs:
    """The inputs of the model; its scenarios: the newest matrix, the last ones, a forecast with its
    past errors.

    Args:
        problem: the network in float32; B = 1, its demand means nothing.
        recent: the newest matrices, oldest first, Gbit/s, float64.
        lead: intervals from the newest one to the one that is allocated for.
        decisions: splits of the hedges, float32.
        weights: (H,) of the mixture.
        recent_losses: (H,) of the hedges, less that of the mixture.
    """
    forecast = torch.from_numpy(Residual(_LONG_WINDOW).scenarios(recent.numpy(), lead))
    scenarios = [
        part.to(torch.float32)
        for part in (recent[-1:], recent[-_SHORT_WINDOW:], recent[-_LONG_WINDOW:], forecast)
    ]
    of_hedges = [torch.from_numpy(values).to(torch.float32) for values in (weights, recent_losses)]
    return gate_inputs(problem, recent.to(torch.float32), scenarios, decisions, *of_hedges)


def make(spec: Spec, model: Path | None) -> Learned:
    """``learned``, with the model of ``--model`` or the one that comes with Teal."""
    spec.parse_options()
    gate, _ = load_hedge_gate(model_folder(model or MODEL))
    return Learned(gate, default_mixture())
