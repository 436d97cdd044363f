"""Hedge ``dote``: a multilayer perceptron from the last matrices to splits (DOTE; Perry et al.,
NSDI 2023), trained on the past.

The input is the rates of the last ``window`` matrices, each demand over its mean; the output is a
softmax over the live paths of each demand.  At its first call the hedge is trained on all known
matrices but the last tenth, the validation set, which selects the weights.  The loss is the largest
utilisation under the next matrix over its optimum.  After that the weights are constant.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from teal.errors import InputError
from teal.nn.adam import Adam
from teal.problem import Problem
from teal.schemes.past import Past
from teal.solvers import pipeline
from teal.spec import Spec

# Matrices per training step.
_BATCH_MATRICES = 32
_LEARNING_RATE = 1e-3
# Units of each of the two hidden layers.
_HIDDEN_UNITS = 128
# Share of the known matrices, the newest, in the validation set.
_VALIDATION_SHARE = 0.1
# Steps between two validations.
_CHECK_EVERY = 100
# Certified gap of the optima that losses are divided by.
_OPTIMUM_GAP = 1e-2


class Dote:
    """Hedge ``dote``: a multilayer perceptron that maps the last matrices to split ratios.

    A hedge allocates for an interval whose traffic matrix is unknown.

    Args:
        window: number of input matrices.
        steps: number of training steps.
        sensitivity: weight of a penalty on the splits of variable demands (FIGRET); 0 for none.
    """

    def __init__(self, window: int = 12, steps: int = 2000, sensitivity: float = 0.0) -> None:
        self._window = window
        self._steps = steps
        self._sensitivity = sensitivity
        self._perceptron: nn.Module | None = None

    def allocate(self, past: Past) -> Tensor:
        """Return split ratios (D, K) for the next interval.

        They are even until enough matrices are known; then the network is trained once.

        Args:
            past: network, and the matrices measured so far.
        """
        newest_problem = past.last(1)
        if self._perceptron is None:
            # All known matrices, or a sample of them that fits in memory.
            history = past.last(past.num_known, past.window_length(past.num_known))
            # A training sample is a window of matrices and, `lead` intervals later, its target.
            if history.batch <= self._window + past.lead:
                return newest_problem.even_splits[0]
            self._fit(history, past.lead)
        assert self._perceptron is not None
        # Splits for the last matrices, as a batch of one.
        with torch.no_grad():
            return self._splits(newest_problem, self._input(past.last(self._window).demand)[None])[
                0
            ].to(torch.float64)

    def _input(self, demand: Tensor) -> Tensor:
        """Return the network input (window * D,): the rates of the last matrices, each divided by
        the demand's mean.

        Args:
            demand: (n, D) Gbit/s, oldest first; if n < window, the oldest matrix is repeated.
        """
        # Repeat the oldest matrix before the known ones, or drop matrices before the window.
        num_missing = self._window - len(demand)
        demand = (
            torch.cat([demand[:1].expand(num_missing, -1), demand])
            if num_missing > 0
            else demand[-self._window :]
        )
        return (demand / self._mean_rates).to(torch.float32).flatten()

    def _splits(self, problem: Problem, inputs: Tensor) -> Tensor:
        """Return split ratios (B, D, K): a softmax of the network's outputs over the live paths of
        each demand.

        Args:
            problem: network and paths; its demand is ignored.
            inputs: (B, window * D) inputs of the network, see :meth:`_input`.
        """
        assert self._perceptron is not None
        logits = self._perceptron(inputs).view(len(inputs), *problem.paths.leaf.shape)
        live = problem.path_mask[:1]
        splits = torch.where(live, logits, -torch.inf).softmax(-1)
        # A softmax over no path is NaN.
        return torch.where(live, splits, 0)

    def _fit(self, history: Problem, lead: int) -> None:
        """Train the network on consecutive matrices.

        The loss for matrix t is the largest utilisation under the splits x predicted for it, over
        the optimum, plus the penalty sum_d max_k weight[d, k] x[d, k].

        Args:
            history: the known matrices, oldest first.
            lead: number of intervals from the newest input matrix to the target.
        """
        # One sample per target matrix: inputs (samples, window * D), index of the target matrix,
        # and its optimal largest utilisation. The mean rates, which inputs are divided by, are
        # positive.
        demand = history.demand
        self._mean_rates = demand.mean(0).clamp(min=1e-300)
        target_indices = torch.arange(self._window + lead - 1, len(demand))
        inputs = torch.stack([self._input(demand[: t - lead + 1]) for t in target_indices.tolist()])
        optimum = pipeline.solve(history.rows(target_indices), gap=_OPTIMUM_GAP).value
        # One output for each path slot.
        self._perceptron = _initial_perceptron(inputs.shape[1], history.paths.leaf.size)
        penalty = self._penalty_weights(history)

        def losses(sample_indices: Tensor) -> Tensor:
            """Return the loss of each sample whose index is in ``sample_indices``."""
            splits = self._splits(history, inputs[sample_indices]).to(demand)
            # Largest utilisation under the target matrices, over the (positive) optimum.
            utilisation = history.rows(target_indices[sample_indices]).utilisation(splits).amax(1)
            return utilisation / optimum[sample_indices].clamp(min=1e-300) + (
                splits * penalty
            ).amax(-1).sum(-1)

        self._train(self._perceptron, losses, len(target_indices))

    def _train(
        self, perceptron: nn.Module, losses: Callable[[Tensor], Tensor], num_samples: int
    ) -> None:
        """Train with Adam on random batches; the weights of the best validation loss remain.

        Args:
            perceptron: the perceptron, trained in place.
            losses: loss of each sample, by its index.
            num_samples: number of samples, in order of time; the last ones are for validation.
        """
        # Indices of the training and validation samples; if all are needed for training, they are
        # used for validation, too.
        num_training = max(1, round((1 - _VALIDATION_SHARE) * num_samples))
        validation_indices = (
            torch.arange(num_training, num_samples)
            if num_training < num_samples
            else torch.arange(num_training)
        )
        generator = torch.Generator().manual_seed(0)
        optimiser = Adam(perceptron.parameters(), _LEARNING_RATE)
        best_loss = np.inf
        best_weights = copy.deepcopy(perceptron.state_dict())
        for step in range(self._steps + 1):
            # Validate, and keep a copy of the best weights.
            if step % _CHECK_EVERY == 0 or step == self._steps:
                with torch.no_grad():
                    validation_loss = float(losses(validation_indices).mean())
                if validation_loss < best_loss:
                    best_loss = validation_loss
                    best_weights = copy.deepcopy(perceptron.state_dict())
            # A step on a random batch.
            rows = torch.randint(
                num_training, (min(_BATCH_MATRICES, num_training),), generator=generator
            )
            optimiser.zero_grad()
            losses(rows).mean().backward()
            optimiser.step()
        perceptron.load_state_dict(best_weights)

    def _penalty_weights(self, history: Problem) -> Tensor:
        """Return the penalty weights (D, K) of FIGRET.

        Weight[d, k] = sensitivity * share[d] * largest bottleneck / bottleneck[d, k]. share[d] is
        the demand's share in the sum of all variances over time, and bottleneck[d, k] the smallest
        link capacity of the path. All weights are 0 without sensitivity.

        Args:
            history: the known matrices.
        """
        if not self._sensitivity:
            return torch.zeros(history.paths.leaf.shape, dtype=torch.float64)
        # (D,) share of each demand in all variance, and (D, K) largest bottleneck over the path's.
        variance = history.demand.var(0, unbiased=False)
        variance_share = variance / variance.sum().clamp(min=1e-300)
        bottleneck = history.bottleneck[0]
        bottleneck_ratio = torch.where(
            bottleneck > 0, bottleneck.amax() / bottleneck.clamp(min=1e-300), 0
        )
        return self._sensitivity * variance_share[:, None] * bottleneck_ratio


def _initial_perceptron(num_inputs: int, num_outputs: int) -> nn.Sequential:
    """Return a perceptron with two hidden layers, whose random weights are the same at every call.

    Args:
        num_inputs: number of inputs.
        num_outputs: number of outputs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(num_inputs, _HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(_HIDDEN_UNITS, _HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(_HIDDEN_UNITS, num_outputs),
        )


def dote_from_spec(spec: Spec, sensitivity: float) -> Dote:
    """Make a hedge ``dote`` or ``figret`` from its specification.

    Args:
        spec: specification with the options window, steps and sensitivity.
        sensitivity: default of the option ``sensitivity``; 0 if the hedge has no such option.

    Raises:
        InputError: an unknown option, or a value out of its range.
    """
    sensitivity_option = {"sensitivity": sensitivity} if sensitivity else {}
    options = spec.parse_options(window=12, steps=2000, **sensitivity_option)
    for name in ("window", "steps"):
        if int(options[name]) < 1:
            raise InputError(spec.text, name, "an integer >= 1", options[name])
    weight = float(options.get("sensitivity", 0.0))
    if weight < 0:
        raise InputError(spec.text, "sensitivity", "a number >= 0", weight)
    return Dote(int(options["window"]), int(options["steps"]), weight)


def make(spec: Spec, model: Path | None) -> Dote:
    """Make the hedge of a specification such as ``dote[:window=12,steps=2000]``.

    Args:
        spec: the specification.
        model: ignored; the hedge is trained on the past.
    """
    return dote_from_spec(spec, 0.0)
