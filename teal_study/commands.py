"""The commands that this package adds to ``teal`` (entry point ``teal.commands``)."""

from __future__ import annotations

from teal.app.command import COMPARE, FIRST_SOLVE, LEARN, Command
from teal_study.evaluation.settings import (
    AuditConfig,
    BenchConfig,
    EvaluateConfig,
    ReportConfig,
    SweepConfig,
)
from teal_study.learning.settings import PretrainConfig, TrainConfig
from teal_study.planning.settings import PlanConfig

# Tasks of the kernels that solve several matrices side by side.
_MANY_MATRICES = ("engine for 16 matrices", "engine for 8 matrices")

# `evaluate` compiles kernels itself, by network size and schemes.
COMMANDS = {
    "evaluate": Command(
        EvaluateConfig, "teal_study.evaluation.evaluate_command:evaluate_outcome", COMPARE
    ),
    "report": Command(ReportConfig, "teal_study.evaluation.report_command:report_outcome", COMPARE),
    "plan": Command(
        PlanConfig,
        "teal_study.planning.plan_command:plan_outcome",
        COMPARE,
        FIRST_SOLVE,
        _MANY_MATRICES,
    ),
    "audit": Command(
        AuditConfig, "teal_study.evaluation.audit:audit_outcome", COMPARE, FIRST_SOLVE
    ),
    "bench": Command(
        BenchConfig, "teal_study.evaluation.bench.command:bench_outcome", COMPARE, FIRST_SOLVE
    ),
    "train": Command(
        TrainConfig, "teal_study.learning.train_command:train_outcome", LEARN, FIRST_SOLVE
    ),
    "sweep": Command(SweepConfig, "teal_study.evaluation.sweep:sweep_outcome", LEARN, FIRST_SOLVE),
    "pretrain": Command(
        PretrainConfig, "teal_study.learning.pretrain:pretrain_outcome", LEARN, FIRST_SOLVE
    ),
}
