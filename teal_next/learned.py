"""Hedge ``learned``: the default mixture, corrected for each demand by a model for any network.

The model is :mod:`teal.nn.hedge_gate`.  Teal's own checkpoint was trained on random histories only
(``teal pretrain --model hedge``), not on any measured series.
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

# Teal's own checkpoint.
MODEL = Path("hedge")
# Number of newest matrices that the model sees.
HISTORY = 144
# Numbers of matrices in its sets of scenarios.
_LONG_WINDOW = 36
_SHORT_WINDOW = 12


class Learned:
    """Hedge ``learned``: the splits of a mixture of H hedges, corrected by a model (gate).

    A hedge allocates for an interval whose traffic matrix is unknown; a mixture averages the splits
    of several hedges.

    Args:
        model: the gate.
        mixture: mixture whose splits the gate corrects.
    """

    def __init__(self, model: HedgeGate, mixture: Mixture) -> None:
        self._model = model
        self._mixture = mixture

    @torch.no_grad()
    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        Args:
            past: network, and the matrices measured so far.
        """
        decisions = self._mixture.decisions(past).to(torch.float32)
        # The newest matrices, and the network with one matrix in float32.
        recent_problem = past.last(past.window_length(HISTORY))
        network_problem = recent_problem.row(0).to(torch.float32)
        weights = self._mixture.weights
        losses = self._mixture.recent_losses
        inputs = model_inputs(
            network_problem, recent_problem.demand, past.lead, decisions, weights, losses
        )
        return self._model(inputs, decisions).to(torch.float64)


def model_inputs(
    problem: Problem,
    recent: Float[Tensor, "T D"],
    lead: int,
    decisions: Float[Tensor, "H D K"],
    weights: FloatArray,
    recent_losses: FloatArray,
) -> GateInputs:
    """Assemble the inputs of the hedge gate.

    The gate sees four sets of scenario matrices: the newest matrix, the last 12, the last 36, and a
    forecast plus its past errors (residual bootstrap).

    Args:
        problem: the network in float32; B = 1, its demand is ignored.
        recent: (T, D) the newest matrices, oldest first, Gbit/s, float64.
        lead: intervals from the newest matrix to the allocated one.
        decisions: (H, D, K) splits of the hedges, float32.
        weights: (H,) weights of the mixture.
        recent_losses: (H,) moving average of the loss of each hedge, less that of the mixture.
    """
    # Four sets of scenarios: newest matrix, short window, long window, forecast plus errors.
    forecast = torch.from_numpy(Residual(_LONG_WINDOW).scenarios(recent.numpy(), lead))
    scenario_sets = [
        matrices.to(torch.float32)
        for matrices in (recent[-1:], recent[-_SHORT_WINDOW:], recent[-_LONG_WINDOW:], forecast)
    ]
    hedge_inputs = [
        torch.from_numpy(values).to(torch.float32) for values in (weights, recent_losses)
    ]
    return gate_inputs(problem, recent.to(torch.float32), scenario_sets, decisions, *hedge_inputs)


def make(spec: Spec, model: Path | None) -> Learned:
    """Make the hedge ``learned`` with a model.

    Args:
        spec: the specification, without options.
        model: checkpoint of the model; None for Teal's own.
    """
    spec.parse_options()
    gate, _ = load_hedge_gate(model_folder(model or MODEL))
    return Learned(gate, default_mixture())
