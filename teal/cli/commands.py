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
from teal.app.command import ALLOCATE, FIRST_SOLVE, INPUT, MACHINE, Command
from teal.app.settings import WarmUpConfig
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
from teal.spec import Registry

# `solve` and `certify` compile kernels themselves, by network size.
_BUILT_IN = {
    "solve": Command(SolveConfig, "teal.allocation.solve_command:solve_outcome", ALLOCATE),
    "allocate": Command(
        AllocateConfig, "teal.allocation.allocate_command:allocate_outcome", ALLOCATE, FIRST_SOLVE
    ),
    "certify": Command(CertifyConfig, "teal.allocation.certify:certify_outcome", ALLOCATE),
    "update": Command(UpdateConfig, "teal.allocation.update:update_outcome", ALLOCATE),
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
    "warm-up": Command(WarmUpConfig, "teal.app.warm_up:warm_up_outcome", MACHINE),
}

_PACKAGES: Registry[Mapping[str, Command]] = Registry("commands", "teal.commands")


def _load_commands() -> tuple[dict[str, Command], dict[str, str]]:
    """Return two dictionaries: all commands by name; and the reasons why the commands of installed
    distributions are missing, by the names of their entry points.
    """
    commands = dict[str, Command](_BUILT_IN)
    missing = dict[str, str]()
    for package in _PACKAGES.names():
        try:
            package_commands = _PACKAGES[package]
        except ImportError as error:
            missing[package] = str(error)
            continue
        # A package may not replace commands of others.
        duplicates = sorted(set(package_commands) & set(commands))
        if duplicates:
            missing[package] = f"commands of these names exist already: {', '.join(duplicates)}"
        else:
            commands |= package_commands
    return commands, missing


COMMANDS, MISSING = _load_commands()
