"""Every setting of every command: frozen dataclasses, documented field by field.

The command line is made from these, so a field's docstring is its ``--help``.
"""

from teal.config.base import CandidateConfig, InstanceConfig, PathConfig, ProgramConfig, seconds
from teal.config.evaluation import EvaluateConfig, PlanConfig, ReportConfig
from teal.config.learning import PretrainConfig, TrainConfig
from teal.config.serving import ServeConfig
from teal.config.solving import AllocateConfig, ImproveConfig, PathsConfig, SolveConfig
from teal.config.traffic import TrafficConfig, TrafficConvertConfig, TrafficGenerateConfig

__all__ = [
    "AllocateConfig",
    "CandidateConfig",
    "EvaluateConfig",
    "ImproveConfig",
    "InstanceConfig",
    "PathConfig",
    "PathsConfig",
    "PlanConfig",
    "PretrainConfig",
    "ProgramConfig",
    "ReportConfig",
    "ServeConfig",
    "SolveConfig",
    "TrafficConfig",
    "TrafficConvertConfig",
    "TrafficGenerateConfig",
    "TrainConfig",
    "seconds",
]
