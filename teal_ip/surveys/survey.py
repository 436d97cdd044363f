"""Network survey from objects: loads now and under failures, metrics and policies that repair
overloads, and capacity expansion.

Entry point: :func:`survey`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from teal.app.page import write_page
from teal.app.run_files import write_files
from teal.deprecated import with_old_attributes
from teal.formats import load_traffic, save_topology, save_traffic, topology_from
from teal.network import Topology, TrafficMatrices
from teal.runtime.storage import check_out_folder
from teal_ip.metrics.command import MetricsReport
from teal_ip.purchases.result import UpgradePlan
from teal_ip.routing.igp import load_igp
from teal_ip.routing.simulate import Simulation
from teal_ip.segments.command import StaticReport
from teal_ip.surveys.analyses import (
    METRICS,
    NETWORK,
    POLICIES,
    SIMULATE,
    TRAFFIC,
    UPGRADE,
    Analyses,
    AnalysisResult,
    Step,
    network_step,
    write_step,
)
from teal_ip.surveys.settings import SurveyOptions

PAGE = "survey.html"
STEP_NAMES = ("loads", "metrics", "policies", "purchases")


@with_old_attributes
@dataclasses.dataclass(frozen=True, eq=False)
class SurveyReport:
    """Results of a survey.

    Attributes:
        topology: the network, with the current metrics.
        traffic: the matrices, multiplied by the growth of the options.
        read: first step, which summarises the input.
        results_by_analysis: results by name of the step: loads, metrics, policies, purchases.
        routers: table of routers, for the commands with more detail; None for none.
    """

    topology: Topology
    traffic: TrafficMatrices
    read: Step
    results_by_analysis: Mapping[str, AnalysisResult]
    routers: Path | None = None

    @property
    def loads(self) -> Simulation:
        """Link loads without failure and under each failure."""
        report: Simulation = self.results_by_analysis["loads"].report
        return report

    @property
    def metrics(self) -> MetricsReport | None:
        """Small set of metric changes that reduces the largest utilisation most; None if the
        search failed.
        """
        report: MetricsReport | None = self.results_by_analysis["metrics"].report
        return report

    @property
    def policies(self) -> StaticReport | None:
        """Small set of segment routing policies that reduces the largest utilisation most; None
        if the search failed.
        """
        report: StaticReport | None = self.results_by_analysis["policies"].report
        return report

    @property
    def purchases(self) -> UpgradePlan | None:
        """Capacity expansion with which every link respects the utilisation limit; None if the
        search failed.
        """
        report: UpgradePlan | None = self.results_by_analysis["purchases"].report
        return report

    def __repr__(self) -> str:
        """Return the answers of all steps, one a line."""
        return "\n".join(
            item.step.answer for item in self.results_by_analysis.values() if item.step.answer
        )

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each step: name, title, answer."""
        import pandas as pd

        rows = [
            (name, item.step.title, item.step.answer)
            for name, item in self.results_by_analysis.items()
        ]
        return pd.DataFrame(rows, columns=["step", "title", "answer"])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the page and the results of all steps to a folder.

        Args:
            folder: output folder.
            overwrite: whether existing results may be replaced.

        Raises:
            InputError: the folder has results, and ``overwrite`` is false.
        """
        out = Path(folder)
        names = (PAGE, NETWORK, TRAFFIC, METRICS, POLICIES, SIMULATE, UPGRADE)
        check_out_folder(out, names, overwrite=overwrite)
        # Write the input first: the commands of the steps refer to its files.
        inputs: dict[str, Callable[[Path], None]] = {
            NETWORK: partial(save_topology, topology=self.topology),
            TRAFFIC: traffic_writer(self.traffic, self.topology),
        }
        write_files(out, inputs)
        steps = [
            write_step(out, name, item, self.routers)
            for name, item in self.results_by_analysis.items()
        ]
        write_files(out, {PAGE: page_writer(self.topology, [self.read, *steps])})


def traffic_writer(traffic: TrafficMatrices, topology: Topology) -> Callable[[Path], None]:
    """Return a function that writes matrices to a path in float64, so that a load at the
    utilisation limit is still at the limit when the file is read.
    """
    return partial(save_traffic, traffic=traffic, topology=topology, exact=True)


def page_writer(topology: Topology, steps: Sequence[Step]) -> Callable[[Path], None]:
    """Return a function that writes the survey's page to a path.

    Args:
        topology: the network, for the heading.
        steps: finished steps, a section each; their answers are the introduction.
    """
    answers = " ".join(step.answer for step in steps if step.answer)
    return partial(
        write_page,
        heading=f"Survey of {topology.name}",
        introduction=answers or "Interrupted.",
        sections=[step.section() for step in steps],
    )


def survey(
    topology: Any,
    traffic: Any,
    options: SurveyOptions,
    notify: Callable[[str], None] = lambda _: None,
) -> SurveyReport:
    """Run all steps of a survey, and return their results.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        options: settings of the survey.
        notify: called with the progress.

    Raises:
        InputError: invalid input.
    """
    # Read the network and its traffic; apply IGP settings and growth.
    network = topology_from(topology, options)
    matrices = load_traffic(traffic, network, unit=options.traffic_unit)
    current_topology, dag = load_igp(options, network, notify)
    grown_traffic = matrices.scaled(options.growth)
    analyses = Analyses(dag, grown_traffic, options, notify)

    # Run the analyses in order; capacity expansion needs the growth that the loads forecast.
    results_by_step: dict[str, AnalysisResult] = {}
    for name in STEP_NAMES:
        growth = results_by_step["loads"].step.growth if results_by_step else 1.0
        results_by_step[name] = analyses.attempt(name, growth)
    input_step = network_step(current_topology, network.notes, matrices, options.growth)
    return SurveyReport(
        current_topology, grown_traffic, input_step, results_by_step, options.routers
    )
