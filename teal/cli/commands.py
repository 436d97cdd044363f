"""The commands: their settings, what runs them, and the group in which ``teal --help`` lists them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from teal.cli import bench_runners, counter_runners, input_runners, routing_runners, runners
from teal.config import (
    AllocateConfig,
    AuditConfig,
    BenchMakeConfig,
    BenchRankConfig,
    BenchRunConfig,
    CertifyConfig,
    CheckConfig,
    EstimateConfig,
    EvaluateConfig,
    ExportConfig,
    ImproveConfig,
    MetricsConfig,
    PathsConfig,
    PlanConfig,
    PretrainConfig,
    PretrainHedgeConfig,
    ReportConfig,
    ServeConfig,
    SimulateConfig,
    SolveConfig,
    SurveyConfig,
    SweepConfig,
    TopologyConfig,
    TopologyListConfig,
    TrafficConfig,
    TrafficConvertConfig,
    TrafficGenerateConfig,
    TrainConfig,
    UpdateConfig,
    UpgradeConfig,
    WarmUpConfig,
)


@dataclasses.dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        config: class of its settings.
        run: takes settings and a function that prints progress, and returns the exit code.
        group: heading in ``teal --help``.
        uses_kernels: whether the kernels of a first solve are compiled before it begins; what else is missing is
            compiled where it is called.
        uses_all_kernels: whether all of them are, and not only those of a first solve.
        further_kernels: tasks of :mod:`teal.evaluation.warm_up` beside those of a first solve.
    """

    config: type[Any]
    run: Callable[[Any, runners.Notify], int]
    group: str
    uses_kernels: bool = True
    uses_all_kernels: bool = False
    further_kernels: tuple[str, ...] = ()


_MANY_MATRICES = ("engine for 16 matrices", "engine for 8 matrices")
_ALLOCATE, _LEARN, _COMPARE, _INPUT = "allocate", "learn", "compare and plan", "look and convert"

COMMANDS = {
    "solve": Command(SolveConfig, routing_runners.solve, _ALLOCATE, uses_kernels=False),  # a small one needs none
    "allocate": Command(AllocateConfig, runners.allocate, _ALLOCATE),
    "certify": Command(CertifyConfig, runners.certify, _ALLOCATE, uses_kernels=False),  # not for prices that are given
    "export": Command(ExportConfig, runners.export, _ALLOCATE, uses_kernels=False),
    "update": Command(UpdateConfig, runners.update, _ALLOCATE, uses_kernels=False),
    "serve": Command(ServeConfig, runners.serve, _ALLOCATE, uses_all_kernels=True),
    "evaluate": Command(EvaluateConfig, runners.evaluate, _COMPARE, uses_kernels=False),  # compiles for its schemes
    "report": Command(ReportConfig, runners.report, _COMPARE, uses_kernels=False),
    "simulate": Command(SimulateConfig, routing_runners.simulate, _COMPARE, uses_kernels=False),
    "survey": Command(SurveyConfig, routing_runners.survey, _COMPARE, uses_kernels=False),
    "metrics": Command(MetricsConfig, routing_runners.metrics, _COMPARE, uses_kernels=False),
    "plan": Command(PlanConfig, runners.plan, _COMPARE, further_kernels=_MANY_MATRICES),
    "upgrade": Command(UpgradeConfig, routing_runners.upgrade, _COMPARE),
    "audit": Command(AuditConfig, runners.audit, _COMPARE),
    "bench make": Command(BenchMakeConfig, bench_runners.make, _COMPARE),
    "bench run": Command(BenchRunConfig, bench_runners.run, _COMPARE),
    "bench rank": Command(BenchRankConfig, bench_runners.rank, _COMPARE, uses_kernels=False),
    "train": Command(TrainConfig, runners.train, _LEARN),
    "sweep": Command(SweepConfig, runners.sweep, _LEARN),
    "pretrain": Command(PretrainConfig, runners.pretrain, _LEARN),
    "pretrain-hedge": Command(PretrainHedgeConfig, runners.pretrain_hedge, _LEARN),
    "estimate": Command(EstimateConfig, counter_runners.estimate, _INPUT, uses_kernels=False),
    "check": Command(CheckConfig, counter_runners.check, _INPUT, uses_kernels=False),
    "topology list": Command(TopologyListConfig, input_runners.list_topologies, _INPUT, uses_kernels=False),
    "topology info": Command(TopologyConfig, input_runners.describe_topology, _INPUT, uses_kernels=False),
    "traffic info": Command(TrafficConfig, input_runners.traffic_info, _INPUT, uses_kernels=False),
    "traffic generate": Command(TrafficGenerateConfig, input_runners.convert_traffic, _INPUT, uses_kernels=False),
    "traffic convert": Command(TrafficConvertConfig, input_runners.convert_traffic, _INPUT, uses_kernels=False),
    "paths compute": Command(PathsConfig, runners.paths, _INPUT),
    "paths improve": Command(ImproveConfig, runners.improve, _INPUT),
    "warm-up": Command(WarmUpConfig, runners.warm_up, "this machine", uses_kernels=False),
}
