"""The settings of every command: frozen dataclasses, one file a command.

The command line is made from these: the docstring of a field is its text in ``--help``.
"""

from teal.config.allocate import AllocateConfig
from teal.config.audit import AuditConfig
from teal.config.base import CandidateConfig, InstanceConfig, PathConfig, ProgramConfig, assignments, seconds
from teal.config.bench import BenchMakeConfig, BenchRankConfig, BenchRunConfig
from teal.config.certify import CertifyConfig
from teal.config.counters import CheckConfig, EstimateConfig
from teal.config.evaluate import EvaluateConfig
from teal.config.export import ExportConfig
from teal.config.metrics import MetricsConfig
from teal.config.paths import ImproveConfig, PathsConfig
from teal.config.plan import PlanConfig
from teal.config.pretrain import PretrainConfig
from teal.config.pretrain_hedge import PretrainHedgeConfig
from teal.config.report import ReportConfig
from teal.config.serve import ServeConfig
from teal.config.simulate import SimulateConfig
from teal.config.solve import SolveConfig
from teal.config.survey import SurveyConfig
from teal.config.sweep import SweepConfig
from teal.config.topology import TopologyConfig, TopologyListConfig
from teal.config.traffic import TrafficConfig, TrafficConvertConfig, TrafficGenerateConfig
from teal.config.train import TrainConfig
from teal.config.update import UpdateConfig
from teal.config.upgrade import UpgradeConfig
from teal.config.warm_up import WarmUpConfig

__all__ = [
    "AllocateConfig",
    "AuditConfig",
    "BenchMakeConfig",
    "BenchRankConfig",
    "BenchRunConfig",
    "CandidateConfig",
    "CertifyConfig",
    "CheckConfig",
    "EstimateConfig",
    "EvaluateConfig",
    "ExportConfig",
    "ImproveConfig",
    "InstanceConfig",
    "MetricsConfig",
    "PathConfig",
    "PathsConfig",
    "PlanConfig",
    "PretrainConfig",
    "PretrainHedgeConfig",
    "ProgramConfig",
    "ReportConfig",
    "ServeConfig",
    "SimulateConfig",
    "SolveConfig",
    "SurveyConfig",
    "SweepConfig",
    "TopologyConfig",
    "TopologyListConfig",
    "TrafficConfig",
    "TrafficConvertConfig",
    "TrafficGenerateConfig",
    "TrainConfig",
    "UpdateConfig",
    "UpgradeConfig",
    "WarmUpConfig",
    "assignments",
    "seconds",
]
