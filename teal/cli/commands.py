"""Table of all commands: settings, function, and group in ``teal --help``.

Other distributions announce further commands by an entry point in the group ``teal.commands``, a
mapping from names to :class:`teal.app.command.Command`.
"""

from __future__ import annotations

from collections.abc import Mapping

from teal.allocation.settings import (
    AllocateConfig,
    CertifyConfig,
    ImproveConfig,
    PathsConfig,
    SolveConfig,
    UpdateConfig,
)
from teal.app.command import ALLOCATE, COMPARE, FIRST_SOLVE, INPUT, LEARN, Command
from teal.app.settings import WarmUpConfig
from teal.evaluation.settings import (
    AuditConfig,
    BenchConfig,
    EvaluateConfig,
    ReportConfig,
    SweepConfig,
)
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
from teal.planning.settings import PlanConfig
from teal.serving.settings import ServeConfig
from teal.spec import Registry

# Tasks of the kernels that solve several matrices side by side.
_MANY_MATRICES = ("engine for 16 matrices", "engine for 8 matrices")

# `solve`, `certify` and `evaluate` compile kernels themselves, by network size and schemes.
_BUILT_IN = {
    "solve": Command(SolveConfig, "teal.allocation.solve_command:solve_outcome", ALLOCATE),
    "allocate": Command(
        AllocateConfig, "teal.allocation.allocate_command:allocate_outcome", ALLOCATE, FIRST_SOLVE
    ),
    "certify": Command(CertifyConfig, "teal.allocation.certify:certify_outcome", ALLOCATE),
    "update": Command(UpdateConfig, "teal.allocation.update:update_outcome", ALLOCATE),
    "serve": Command(ServeConfig, "teal.serving.command:serve_outcome", ALLOCATE),
    "evaluate": Command(
        EvaluateConfig, "teal.evaluation.evaluate_command:evaluate_outcome", COMPARE
    ),
    "report": Command(ReportConfig, "teal.evaluation.report_command:report_outcome", COMPARE),
    "plan": Command(
        PlanConfig, "teal.planning.plan_command:plan_outcome", COMPARE, FIRST_SOLVE, _MANY_MATRICES
    ),
    "audit": Command(AuditConfig, "teal.evaluation.audit:audit_outcome", COMPARE, FIRST_SOLVE),
    "bench": Command(
        BenchConfig, "teal.evaluation.bench.command:bench_outcome", COMPARE, FIRST_SOLVE
    ),
    "train": Command(TrainConfig, "teal.learning.train_command:train_outcome", LEARN, FIRST_SOLVE),
    "sweep": Command(SweepConfig, "teal.evaluation.sweep:sweep_outcome", LEARN, FIRST_SOLVE),
    "pretrain": Command(
        PretrainConfig, "teal.learning.pretrain:pretrain_outcome", LEARN, FIRST_SOLVE
    ),
    "topology list": Command(TopologyListConfig, "teal.inputs:list_outcome", INPUT),
    "topology get": Command(TopologyGetConfig, "teal.inputs:get_outcome", INPUT, first_word="name"),
    "topology convert": Command(
        TopologyConvertConfig, "teal.inputs:convert_topology_outcome", INPUT
    ),
    "topology info": Command(TopologyConfig, "teal.inputs:topology_outcome", INPUT),
    "traffic get": Command(TrafficGetConfig, "teal.inputs:get_outcome", INPUT, first_word="name"),
    "traffic info": Command(TrafficConfig, "teal.inputs:traffic_outcome", INPUT),
    "traffic generate": Command(TrafficGenerateConfig, "teal.inputs:convert_outcome", INPUT),
    "traffic convert": Command(TrafficConvertConfig, "teal.inputs:convert_outcome", INPUT),
    "paths compute": Command(
        PathsConfig, "teal.allocation.paths:compute_outcome", INPUT, FIRST_SOLVE
    ),
    "paths improve": Command(
        ImproveConfig, "teal.allocation.paths:improve_outcome", INPUT, FIRST_SOLVE
    ),
    "warm-up": Command(WarmUpConfig, "teal.app.warm_up:warm_up_outcome", "this machine"),
}

_PACKAGES: Registry[Mapping[str, Command]] = Registry("commands", "teal.commands")


def _all() -> tuple[dict[str, Command], dict[str, str]]:
    """Return two dictionaries: all commands by name; and the reasons why the commands of installed
    distributions are missing, by the names of their entry points.
    """
    commands = dict[str, Command](_BUILT_IN)
    missing = dict[str, str]()
    for package in _PACKAGES.names():
        try:
            announced = _PACKAGES[package]
        except ImportError as error:
            missing[package] = str(error)
            continue
        duplicates = sorted(set(announced) & set(commands))
        if duplicates:
            missing[package] = f"commands of these names exist already: {', '.join(duplicates)}"
        else:
            commands |= announced
    return commands, missing


COMMANDS, MISSING = _all()
