"""The public names of this package."""

from .admission import Request
from .admit_command import AdmissionReport, admit
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
    "AdmissionReport",
    "AvailabilityReport",
    "Components",
    "Patterns",
    "Promise",
    "Quantile",
    "Request",
    "States",
    "admit",
    "availability",
    "common_quantile",
    "components_of",
    "most_probable",
    "pattern_probabilities",
    "promise_common_share",
    "promise_least_loss",
]
