"""`toy:scale=2`: the gradient of the surrogate, times a number."""

from typing import Any

from teal.extend import Spec
from teal_study.learning.learners import Learner, direct_loss


def make(spec: Spec) -> Learner:
    """The learner of a specification."""
    options: Any = spec.parse_options(scale=1.0)
    return lambda model, problem, means, noise, config: (
        options["scale"] * direct_loss(model, problem, means)
    )
