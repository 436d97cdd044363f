"""The public names of this package."""

from .admit_command import AdmissionReport, admit
from .api import availability
from .components import Components, components_of
from .expand_command import ExpansionReport, expand, peak_requests
from .guarantees import (
    Guarantee,
    Quantile,
    common_quantile,
    guarantee_common_fraction,
    guarantee_common_fractions,
    guarantee_min_loss,
)
from .protection_options import Request
from .report import AvailabilityReport
from .states import States, most_probable_states
from .survival import SurvivalStates, survival_probabilities
from .tail_loss import MergedStates, guarantee_min_cvar, merge_states

__all__ = [
    "AdmissionReport",
    "AvailabilityReport",
    "Components",
    "ExpansionReport",
    "Guarantee",
    "MergedStates",
    "Quantile",
    "Request",
    "States",
    "SurvivalStates",
    "admit",
    "availability",
    "common_quantile",
    "components_of",
    "expand",
    "guarantee_common_fraction",
    "guarantee_common_fractions",
    "guarantee_min_cvar",
    "guarantee_min_loss",
    "merge_states",
    "most_probable_states",
    "peak_requests",
    "survival_probabilities",
]
