"""Learners by name: what a policy is trained with, ``teal train --learner``."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from teal.errors import InputError
from teal.learning.coma import Exploration, coma_loss
from teal.learning.losses import reward
from teal.learning.noise import Noise
from teal.learning.settings import TrainOptions
from teal.nn.flow_models import FlowModel
from teal.problem import Problem
from teal.spec import Registry, Spec, parse_spec


def direct_loss(model: FlowModel, problem: Problem, means: Tensor) -> Tensor:
    """Minus the reward of the policy's means, (B,).

    Args:
        model: model whose actions they are.
        means: (B, D, K) from the policy.
    """
    return -reward(problem, model.splits(means, problem))


Learner = Callable[[FlowModel, Problem, Tensor, Noise, TrainOptions], Tensor]
"""The loss (B,) whose gradient the policy follows, of model, matrices, means (B, D, K), random
numbers and settings."""


LearnerFactory = Callable[[Spec], Learner]
"""Makes a learner from its specification, ``name:key=value,...``."""


def _direct(
    model: FlowModel, problem: Problem, means: Tensor, noise: Noise, config: TrainOptions
) -> Tensor:
    return direct_loss(model, problem, means)


def make_coma(spec: Spec) -> Learner:
    """COMA* with its options: std, the standard deviation of the Gaussian policy; samples, the
    counterfactual actions of each agent; episodes, the joint actions drawn for each matrix.

    Raises:
        InputError: an unknown option, or a number out of its range.
    """
    options = spec.parse_options(std=0.2, samples=5, episodes=4)
    std, samples, episodes = (options[name] for name in ("std", "samples", "episodes"))
    if not 0 < float(std) < math.inf:
        raise InputError(spec.text, "std", "a number > 0", std)
    for name, count in (("samples", samples), ("episodes", episodes)):
        if int(count) < 1:
            raise InputError(spec.text, name, "an integer >= 1", count)

    def loss(
        model: FlowModel, problem: Problem, means: Tensor, noise: Noise, config: TrainOptions
    ) -> Tensor:
        exploration = Exploration(float(std), int(samples), int(episodes), clamp=model.clamp)
        return coma_loss(problem, means, exploration, noise)

    return loss


def _without_options(learner: Learner) -> LearnerFactory:
    def make(spec: Spec) -> Learner:
        spec.parse_options()
        return learner

    return make


_BUILT_IN: dict[str, LearnerFactory] = {"direct": _without_options(_direct), "coma": make_coma}
LEARNERS: Registry[LearnerFactory] = Registry("learner", "teal.learners", _BUILT_IN)


def make_learner(text: str) -> Learner:
    """The learner that ``text`` specifies, such as ``reinforce:episodes=8``.

    Raises:
        InputError: an unknown name or option.
    """
    spec = parse_spec(text)
    return LEARNERS[spec.name](spec)


def is_built_in(text: str) -> bool:
    """Whether the learner that ``text`` specifies is one of Teal's, whose losses depend on its
    arguments alone: a registered one may count its calls, of which no recording knows.
    """
    name = parse_spec(text).name
    return LEARNERS[name] is _BUILT_IN.get(name)


def register_learner(name: str, make: LearnerFactory, *, replace: bool = False) -> None:
    """Make a learner available as ``teal train --learner``.

    A package announces its learners without being imported, by entry points in the group
    ``teal.learners``.

    Args:
        name: name of the learner.
        make: makes the learner from its specification.  A learner gives the loss (B,) of B
            matrices; it takes its random numbers from ``noise``, so that a resumed run and several
            workers make the same steps.
        replace: whether it may take the place of another one.

    Raises:
        InputError: the name is taken, and ``replace`` is false.
    """
    LEARNERS.add(name, make, replace=replace)
