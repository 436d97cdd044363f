"""The public names of this package."""

from .admit_command import AdmissionReport, admit
from .api import availability
from .components import Components, components_of
from .expand_command import ExpansionReport, expand, peak_requests
from .patterns import Patterns, pattern_probabilities
from .promises import (
    Promise,
    Quantile,
    common_quantile,
    promise_common_share,
    promise_common_shares,
    promise_least_loss,
)
from .protection_options import Request
from .report import AvailabilityReport
from .states import States, most_probable
from .tail_loss import Effects, effects_of, promise_tail_loss

__all__ = [
    "AdmissionReport",
    "AvailabilityReport",
    "Components",
    "Effects",
    "ExpansionReport",
    "Patterns",
    "Promise",
    "Quantile",
    "Request",
    "States",
    "admit",
    "availability",
    "common_quantile",
    "components_of",
    "effects_of",
    "expand",
    "most_probable",
    "pattern_probabilities",
    "peak_requests",
    "promise_common_share",
    "promise_common_shares",
    "promise_least_loss",
    "promise_tail_loss",
]
