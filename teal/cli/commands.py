"""The commands: their settings, the function that runs each, and the group in which ``teal --help`` lists it."""

from __future__ import annotations

from typing import Literal

from teal.allocation.settings import (
    AllocateConfig,
    CertifyConfig,
    ExportConfig,
    ImproveConfig,
    PathsConfig,
    SolveConfig,
    UpdateConfig,
)
from teal.app.command import Command
from teal.app.settings import WarmUpConfig
from teal.counters.settings import CheckConfig, EstimateConfig
from teal.evaluation.settings import (
    AuditConfig,
    BenchMakeConfig,
    BenchRankConfig,
    BenchRunConfig,
    EvaluateConfig,
    ReportConfig,
    SweepConfig,
)
from teal.hedging.settings import PretrainHedgeConfig
from teal.inputs import (
    TopologyConfig,
    TopologyConvertConfig,
    TopologyGetConfig,
    TopologyListConfig,
    TrafficConfig,
    TrafficConvertConfig,
    TrafficGenerateConfig,
    TrafficGetConfig,
)
from teal.learning.settings import PretrainConfig, TrainConfig
from teal.planning.settings import PlanConfig, SurveyConfig, UpgradeConfig
from teal.routing.settings import MetricsConfig, SimulateConfig
from teal.serving.settings import ServeConfig

_MANY_MATRICES = ("engine for 16 matrices", "engine for 8 matrices")
_FIRST: Literal["first solve"] = "first solve"  # kernels that are compiled before the command begins
_ALLOCATE, _LEARN, _COMPARE, _INPUT = "allocate", "learn", "compare and plan", "look and convert"

# `solve`, `certify` and `evaluate` compile what their networks and schemes need.
COMMANDS = {
    "solve": Command(SolveConfig, "teal.allocation.solve_command:solve_outcome", _ALLOCATE),
    "allocate": Command(AllocateConfig, "teal.allocation.allocate_command:allocate_outcome", _ALLOCATE, _FIRST),
    "certify": Command(CertifyConfig, "teal.allocation.certify:certify_outcome", _ALLOCATE),
    "export": Command(ExportConfig, "teal.allocation.export:export_outcome", _ALLOCATE),
    "update": Command(UpdateConfig, "teal.allocation.update:update_outcome", _ALLOCATE),
    "serve": Command(ServeConfig, "teal.serving.command:serve_outcome", _ALLOCATE, "all"),
    "evaluate": Command(EvaluateConfig, "teal.evaluation.evaluate_command:evaluate_outcome", _COMPARE),
    "report": Command(ReportConfig, "teal.evaluation.report_command:report_outcome", _COMPARE),
    "simulate": Command(SimulateConfig, "teal.routing.simulate_command:simulate_outcome", _COMPARE),
    "survey": Command(SurveyConfig, "teal.planning.survey:survey_outcome", _COMPARE),
    "metrics": Command(MetricsConfig, "teal.routing.metrics:metrics_outcome", _COMPARE),
    "plan": Command(PlanConfig, "teal.planning.plan_command:plan_outcome", _COMPARE, _FIRST, _MANY_MATRICES),
    "upgrade": Command(UpgradeConfig, "teal.planning.upgrade.command:upgrade_outcome", _COMPARE, _FIRST),
    "audit": Command(AuditConfig, "teal.evaluation.audit:audit_outcome", _COMPARE, _FIRST),
    "bench make": Command(BenchMakeConfig, "teal.evaluation.bench.command:make_outcome", _COMPARE, _FIRST),
    "bench run": Command(BenchRunConfig, "teal.evaluation.bench.command:run_outcome", _COMPARE, _FIRST),
    "bench rank": Command(BenchRankConfig, "teal.evaluation.bench.command:rank_outcome", _COMPARE),
    "train": Command(TrainConfig, "teal.learning.train_command:train_outcome", _LEARN, _FIRST),
    "sweep": Command(SweepConfig, "teal.evaluation.sweep:sweep_outcome", _LEARN, _FIRST),
    "pretrain": Command(PretrainConfig, "teal.learning.pretrain:pretrain_outcome", _LEARN, _FIRST),
    "pretrain-hedge": Command(PretrainHedgeConfig, "teal.hedging.pretrain:pretrain_hedge_outcome", _LEARN, _FIRST),
    "estimate": Command(EstimateConfig, "teal.counters.commands:estimate_outcome", _INPUT),
    "check": Command(CheckConfig, "teal.counters.commands:check_outcome", _INPUT),
    "topology list": Command(TopologyListConfig, "teal.inputs:list_outcome", _INPUT),
    "topology get": Command(TopologyGetConfig, "teal.inputs:get_outcome", _INPUT, first_word="name"),
    "topology convert": Command(TopologyConvertConfig, "teal.inputs:convert_topology_outcome", _INPUT),
    "topology info": Command(TopologyConfig, "teal.inputs:topology_outcome", _INPUT),
    "traffic get": Command(TrafficGetConfig, "teal.inputs:get_outcome", _INPUT, first_word="name"),
    "traffic info": Command(TrafficConfig, "teal.inputs:traffic_outcome", _INPUT),
    "traffic generate": Command(TrafficGenerateConfig, "teal.inputs:convert_outcome", _INPUT),
    "traffic convert": Command(TrafficConvertConfig, "teal.inputs:convert_outcome", _INPUT),
    "paths compute": Command(PathsConfig, "teal.allocation.paths:compute_outcome", _INPUT, _FIRST),
    "paths improve": Command(ImproveConfig, "teal.allocation.paths:improve_outcome", _INPUT, _FIRST),
    "warm-up": Command(WarmUpConfig, "teal.app.warm_up:warm_up_outcome", "this machine"),
}
