"""Commands of this package as functions of Python; see :mod:`teal.api`.

>>> teal_ip.upgrade("b4", "gravity:seed=0,count=6,load=0.8", growth=1.5, matrices=3).to_frame()
>>> teal_ip.simulate(topology, traffic, failures=("cables",)).to_json()
"""

from __future__ import annotations

from typing import Any

from teal.app.as_files import files_of, nobody, settings_of
from teal_ip.purchases.result import UpgradePlan
from teal_ip.purchases.search import plan_upgrade
from teal_ip.purchases.settings import UpgradeConfig
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate import Simulation
from teal_ip.routing.simulate_command import run_simulate


def upgrade(topology: Any, traffic: Any, **settings: Any) -> UpgradePlan:
    """Find what to buy; ``teal upgrade --help`` lists the settings.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        settings: settings of the command.

    Raises:
        InputError: a fault in the input.
        SolverError: no purchase was found in time.
    """
    with files_of(topology, traffic) as names:
        return plan_upgrade(settings_of(UpgradeConfig, *names, settings), nobody)


def simulate(topology: Any, traffic: Any, **settings: Any) -> Simulation:
    """Loads of the IGP; see ``teal simulate --help`` for the settings, and :func:`upgrade` for the arguments."""
    with files_of(topology, traffic) as names:
        return run_simulate(settings_of(SimulateConfig, *names, settings), nobody)
