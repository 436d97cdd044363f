"""The hedge ``dote``: a perceptron from the last matrices to splits (Perry et al., NSDI 2023),
fitted to the past.

The input is the rates of the last ``window`` matrices, each demand over its mean, the output a
softmax over the live paths of each demand.  At its first call the hedge is fitted to all known
matrices but the last tenth, whose loss chooses among the weights seen: the loss is the realised
largest utilisation of the next matrix over its optimum.  After that the weights stay as they are.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.schemes.past import Past
from teal.solvers import pdhg
from teal.spec import Spec

_BATCH_MATRICES = 32  # matrices of a step
_LEARNING_RATE = 1e-3
_HIDDEN_UNITS = 128  # units of the two layers between input and output
_VALIDATION_SHARE = 0.1  # share of the known matrices, the newest, that chooses the weights
_CHECK_EVERY = 100  # steps between two validations
_OPTIMUM_GAP = 1e-2  # of the optima that losses are divided by


class Dote:
    """The hedge ``dote`` (equations in the module).

    Args:
        window: matrices of the input.
        steps: steps of the fit.
        sensitivity: weight of the penalty of :mod:`teal_next.figret`; 0 for none.
    """

    def __init__(self, window: int = 12, steps: int = 2000, sensitivity: float = 0.0) -> None:
        self._window, self._steps, self._sensitivity = window, steps, sensitivity
        self._network: nn.Module | None = None

    def allocate(self, past: Past) -> Tensor:
        """Splits for the next interval; even splits until more than ``window`` matrices are
        known.
        """
        recent = past.last(1)
        if self._network is None:
            history = past.last(past.known, past.most(past.known))
            if history.batch <= self._window + past.lead:
                return recent.even_splits[0]
            self._fit(history, past.lead)
        assert self._network is not None
        with torch.no_grad():
            return self._splits(recent, self._input(past.last(self._window).demand)[None])[0].to(
                torch.float64
            )

    def _input(self, demand: Tensor) -> Tensor:
        """(window * D,) of matrices (n, D), the oldest again where there are fewer."""
        missing = self._window - len(demand)
        demand = (
            torch.cat([demand[:1].expand(missing, -1), demand])
            if missing > 0
            else demand[-self._window :]
        )
        return (demand / self._mean).to(torch.float32).flatten()

    def _splits(self, problem: Problem, inputs: Tensor) -> Tensor:
        """(B, D, K) for inputs (B, window * D)."""
        assert self._network is not None
        logits = self._network(inputs).view(len(inputs), *problem.paths.leaf.shape)
        live = problem.path_mask[:1]
        splits = torch.where(live, logits, -torch.inf).softmax(-1)
        return torch.where(live, splits, 0)  # a softmax over no path is NaN

    def _fit(self, history: Problem, lead: int) -> None:
        """Find the weights, from consecutive matrices."""
        generator = torch.Generator().manual_seed(0)
        demand, slots = history.demand, history.paths.leaf.size
        self._mean = demand.mean(0).clamp(min=1e-300)
        targets = torch.arange(self._window + lead - 1, len(demand))
        inputs = torch.stack([self._input(demand[: t - lead + 1]) for t in targets.tolist()])
        optimum = pdhg.solve(history.rows(targets), gap=_OPTIMUM_GAP).value
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self._network = nn.Sequential(
                nn.Linear(inputs.shape[1], _HIDDEN_UNITS),
                nn.ReLU(),
                nn.Linear(_HIDDEN_UNITS, _HIDDEN_UNITS),
                nn.ReLU(),
                nn.Linear(_HIDDEN_UNITS, slots),
            )
        count = max(1, round((1 - _VALIDATION_SHARE) * len(targets)))
        penalty = self._penalty_weights(history)
        optimiser = Adam(self._network.parameters(), _LEARNING_RATE)
        best, kept = np.inf, copy.deepcopy(self._network.state_dict())

        def losses(rows: Tensor) -> Tensor:
            splits = self._splits(history, inputs[rows]).to(demand)
            utilisation = history.rows(targets[rows]).utilisation(splits).amax(1)
            return utilisation / optimum[rows].clamp(min=1e-300) + (splits * penalty).amax(-1).sum(
                -1
            )

        validation = (
            torch.arange(count, len(targets)) if count < len(targets) else torch.arange(count)
        )
        for step in range(self._steps + 1):
            if step % _CHECK_EVERY == 0 or step == self._steps:
                with torch.no_grad():
                    score = float(losses(validation).mean())
                if score < best:
                    best, kept = score, copy.deepcopy(self._network.state_dict())
            rows = torch.randint(count, (min(_BATCH_MATRICES, count),), generator=generator)
            optimiser.zero_grad()
            losses(rows).mean().backward()
            optimiser.step()
        self._network.load_state_dict(kept)

    def _penalty_weights(self, history: Problem) -> Tensor:
        """(D, K) weights of the largest term of each demand that is added to the loss."""
        if not self._sensitivity:
            return torch.zeros(history.paths.leaf.shape, dtype=torch.float64)
        variance = history.demand.var(0, unbiased=False)
        share = variance / variance.sum().clamp(min=1e-300)
        bottleneck = history.bottleneck[0]
        relative = torch.where(bottleneck > 0, bottleneck.amax() / bottleneck.clamp(min=1e-300), 0)
        return self._sensitivity * share[:, None] * relative


def parse(spec: Spec, sensitivity: float) -> Dote:
    """The hedge of a specification; ``sensitivity`` is the default of an option of that name,
    unless it is 0.
    """
    known = {"sensitivity": sensitivity} if sensitivity else {}
    options = spec.parse_options(window=12, steps=2000, **known)
    for name in ("window", "steps"):
        if int(options[name]) < 1:
            raise InputError(spec.text, name, "at least 1", options[name])
    weight = float(options.get("sensitivity", 0.0))
    if weight < 0:
        raise InputError(spec.text, "sensitivity", "a number >= 0", weight)
    return Dote(int(options["window"]), int(options["steps"]), weight)


def make(spec: Spec, model: Path | None) -> Dote:
    """``dote[:window=12,steps=2000]``."""
    return parse(spec, 0.0)
