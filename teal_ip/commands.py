"""Commands that this package adds to ``teal``, by name (entry point ``teal.commands``)."""

from __future__ import annotations

from teal.app.command import ALLOCATE, COMPARE, FIRST_SOLVE, INPUT, Command
from teal_ip.configuration.settings import ExportConfig
from teal_ip.counters.settings import CheckConfig, EstimateConfig
from teal_ip.metrics.settings import MetricsConfig
from teal_ip.purchases.settings import UpgradeConfig
from teal_ip.routing.settings import SimulateConfig
from teal_ip.segments.settings import SegmentsConfig
from teal_ip.surveys.settings import SurveyConfig

# Options of ``teal segments`` that ``teal solve`` had in earlier releases.
_FORMER_SOLVE_OPTIONS = (
    "routing",
    "max_segments",
    "flex_algo",
    "adjacency",
    "matrices",
    "survive",
    "groups",
    "fewest_policies",
    "target_utilisation",
    "at_most",
    "transit",
    "one_list",
    "metric",
    "set_metric",
    "ucmp",
)

COMMANDS = {
    "export": Command(
        ExportConfig,
        "teal_ip.configuration.command:export_outcome",
        ALLOCATE,
        formerly={"simulate": ("algorithm_config", "interfaces"), "metrics": ("interfaces",)},
    ),
    "segments": Command(
        SegmentsConfig,
        "teal_ip.segments.command:segments_outcome",
        ALLOCATE,
        formerly={"solve": _FORMER_SOLVE_OPTIONS},
    ),
    "simulate": Command(
        SimulateConfig, "teal_ip.routing.simulate_command:simulate_outcome", COMPARE
    ),
    "survey": Command(SurveyConfig, "teal_ip.surveys.command:survey_outcome", COMPARE),
    "metrics": Command(MetricsConfig, "teal_ip.metrics.command:metrics_outcome", COMPARE),
    "upgrade": Command(
        UpgradeConfig, "teal_ip.purchases.command:upgrade_outcome", COMPARE, FIRST_SOLVE
    ),
    "estimate": Command(EstimateConfig, "teal_ip.counters.commands:estimate_outcome", INPUT),
    "check": Command(CheckConfig, "teal_ip.counters.commands:check_outcome", INPUT),
}
