"""The public names of this package."""

from .api import availability
from .components import Components, components_of
from .patterns import Patterns, pattern_probabilities
from .promises import (
    Promise,
    Quantile,
    common_quantile,
    promise_common_share,
    promise_least_loss,
)
from .report import AvailabilityReport
from .states import States, most_probable

__all__ = [
    "AvailabilityReport",
    "Components",
    "Patterns",
    "Promise",
    "Quantile",
    "States",
    "availability",
    "common_quantile",
    "components_of",
    "most_probable",
    "pattern_probabilities",
    "promise_common_share",
    "promise_least_loss",
]
