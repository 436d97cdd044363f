"""Commands of this package as Python functions; see :mod:`teal.api`.

>>> teal_ip.upgrade("b4", "gravity:seed=0,count=6,load=0.8", growth=1.5, matrices=3).to_frame()
>>> teal_ip.simulate(topology, traffic, failures=("cables",)).to_json()
"""

from __future__ import annotations

from typing import Any

from teal.app.options import with_options
from teal_ip.counters.commands import EstimateReport
from teal_ip.counters.estimate import estimate as estimate_matrices
from teal_ip.counters.estimate import measured_on
from teal_ip.counters.settings import EstimateOptions
from teal_ip.purchases.command import UpgradeReport
from teal_ip.purchases.search import plan_upgrade
from teal_ip.purchases.settings import UpgradeOptions
from teal_ip.routing.igp import routed
from teal_ip.routing.settings import SimulateOptions
from teal_ip.routing.simulate import simulate as simulate_loads
from teal_ip.routing.simulate_command import SimulationReport
from teal_ip.surveys.settings import SurveyOptions
from teal_ip.surveys.survey import SurveyReport
from teal_ip.surveys.survey import survey as run_survey


@with_options(UpgradeOptions)
def upgrade(topology: Any, traffic: Any, options: UpgradeOptions) -> UpgradeReport:
    """Plan capacity expansion, with the options of ``teal upgrade``.

    Writes no files and draws no charts.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
        SolverError: no feasible plan within the time limit.
    """
    return UpgradeReport(**vars(plan_upgrade(topology, traffic, options)))


@with_options(SimulateOptions)
def simulate(topology: Any, traffic: Any, options: SimulateOptions) -> SimulationReport:
    """Simulate IGP routing with the options of ``teal simulate``: link loads, without failure and
    under failures, and a forecast with growth.

    Writes no files and draws no charts.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    dag, matrices = routed(topology, traffic, options, options, lambda _: None)
    return SimulationReport(**vars(simulate_loads(dag, matrices, options, keeps_all=True)))


@with_options(SurveyOptions)
def survey(topology: Any, traffic: Any, options: SurveyOptions) -> SurveyReport:
    """Survey a network with the options of ``teal survey``: loads with and without failures,
    metrics and segment lists that remove overloads, and capacity expansion.

    Writes no files and draws no charts.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, such as those of :func:`estimate`, a pandas frame, a file or a
            name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    return run_survey(topology, traffic, options)


@with_options(EstimateOptions)
def estimate(topology: Any, counters: Any, options: EstimateOptions) -> EstimateReport:
    """Estimate traffic matrices from interface byte counters, and check the counters, with the
    options of ``teal estimate``.

    Writes no files.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        counters: Counters, or a file of readings.
        options: keyword options of the command; ``history``, ``flows`` and ``truth`` may also be
            TrafficMatrices.

    Raises:
        InputError: invalid input.
    """
    run = estimate_matrices(measured_on(topology, counters, options, lambda _: None), options)
    return EstimateReport(**vars(run))
