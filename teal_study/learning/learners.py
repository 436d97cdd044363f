"""Learners by name (``teal train --learner``): losses whose gradient trains the policy."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from teal.errors import InputError
from teal.nn.flow_models import FlowModel
from teal.problem import Problem
from teal.spec import Registry, Spec, parse_spec
from teal_study.learning.coma import Exploration, coma_loss
from teal_study.learning.losses import reward
from teal_study.learning.noise import Noise
from teal_study.learning.settings import TrainOptions


def direct_loss(model: FlowModel, problem: Problem, means: Tensor) -> Tensor:
    """Return minus the reward of the splits at the mean actions, (B,).

    Args:
        model: model of the policy; converts actions to splits.
        problem: B matrices.
        means: (B, D, K) mean actions of the policy.
    """
    return -reward(problem, model.splits(means, problem))


Learner = Callable[[FlowModel, Problem, Tensor, Noise, TrainOptions], Tensor]
"""Function that returns the loss (B,) of the policy, given model, problem of B matrices, mean
actions (B, D, K), source of random numbers, and settings."""


LearnerFactory = Callable[[Spec], Learner]
"""Function that makes a learner from its specification, ``name:key=value,...``."""


def _direct(
    model: FlowModel, problem: Problem, means: Tensor, noise: Noise, config: TrainOptions
) -> Tensor:
    """Return :func:`direct_loss`, (B,), which needs no noise and no settings."""
    return direct_loss(model, problem, means)


def make_coma(spec: Spec) -> Learner:
    """Make the learner COMA* from a specification such as ``coma:std=0.2,samples=5,episodes=4``.

    Options: std, standard deviation of the Gaussian policy; samples, number of counterfactual
    actions of each agent; episodes, number of joint actions per matrix.

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

    # The policy gradient loss (B,) with these settings.
    def loss(
        model: FlowModel, problem: Problem, means: Tensor, noise: Noise, config: TrainOptions
    ) -> Tensor:
        exploration = Exploration(float(std), int(samples), int(episodes), clamp=model.clamp)
        return coma_loss(problem, means, exploration, noise)

    return loss


def _without_options(learner: Learner) -> LearnerFactory:
    """Return a factory of a learner that rejects all options."""

    def make(spec: Spec) -> Learner:
        spec.parse_options()
        return learner

    return make


_BUILT_IN: dict[str, LearnerFactory] = {"direct": _without_options(_direct), "coma": make_coma}
LEARNERS: Registry[LearnerFactory] = Registry("learner", "teal.learners", _BUILT_IN)


def make_learner(text: str) -> Learner:
    """Make the learner of a specification such as ``coma:episodes=8``.

    Raises:
        InputError: an unknown name or option.
    """
    spec = parse_spec(text)
    return LEARNERS[spec.name](spec)


def is_built_in(text: str) -> bool:
    """Whether a specification names a learner of Teal, whose losses depend on its arguments alone.

    A registered learner may have other state, so that its steps cannot be recorded.
    """
    name = parse_spec(text).name
    return LEARNERS[name] is _BUILT_IN.get(name)


def register_learner(name: str, make: LearnerFactory, *, replace: bool = False) -> None:
    """Register a learner for ``teal train --learner``.

    A package can also declare its learners as entry points in the group ``teal.learners``; it is
    then imported on demand.

    Args:
        name: name of the learner.
        make: makes the learner from its specification.  A learner returns the loss (B,) of B
            matrices.  Its random numbers must come from ``noise``, so that a resumed run and
            several workers make the same steps.
        replace: whether to replace a learner with the same name.

    Raises:
        InputError: the name exists already, and ``replace`` is false.
    """
    LEARNERS.add(name, make, replace=replace)
