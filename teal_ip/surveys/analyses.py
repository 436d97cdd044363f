"""Analyses of a survey: their settings, and the sentences that summarise each report.

Entry points: :class:`Analyses`, :func:`write_step`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from teal.app.instance import describe_traffic
from teal.app.page import Section
from teal.app.run_files import JOURNAL, write_files, write_manifest
from teal.app.settings import seconds
from teal.app.table import Column, Table
from teal.app.text import percent
from teal.errors import InputError, TealError
from teal.formats.segment_lists import write_policies
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.runtime.interruptible import Deadline
from teal_ip.metrics.changes import write_changes
from teal_ip.metrics.command import MetricsReport, change_table, improve
from teal_ip.metrics.settings import MetricsConfig, MetricsOptions
from teal_ip.purchases.command import plan_files, purchase_table
from teal_ip.purchases.result import UpgradePlan
from teal_ip.purchases.search import plan_upgrade
from teal_ip.purchases.settings import UpgradeConfig, UpgradeOptions
from teal_ip.routing.settings import SimulateConfig, SimulateOptions
from teal_ip.routing.simulate import Simulation, simulate
from teal_ip.routing.simulate_command import (
    failure_table,
    forecast_sentence,
    loads_sentence,
    simulation_files,
)
from teal_ip.segments.command import StaticReport, solve_static
from teal_ip.segments.settings import SegmentsConfig, SegmentsOptions
from teal_ip.surveys.settings import SurveyOptions

NETWORK = "network.json"
TRAFFIC = "traffic.npz"
METRICS = "metrics.json"
POLICIES = "policies.json"
SIMULATE = "simulate"
UPGRADE = "upgrade"
# Maximum number of failures in the table of the page.
_MAX_LINES = 15
# Relative excess of a utilisation over its limit that counts as rounding.
_ROUNDING = 1e-6
# Number of matrices for which policies are optimised at first, the worst ones under some failure;
# the policies are evaluated on all.
_MATRICES_TO_ROUTE = 8
# Number of matrices to plan expansion for at first, evenly spread over the traffic; the plan is
# evaluated on the others.
_MATRICES_TO_BUY_FOR = 24

Notify = Callable[[str], None]
Settings = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Step:
    """Result of one step of a survey: a section of the page and an entry of the journal.

    Attributes:
        title: title of the section.
        answer: sentence for the beginning of the page; "" for none.
        findings: sentences of the section.
        command: command line with more detail; "" for none.
        page: output of that command, relative to OUT; "" for none.
        lines: table of the section, as texts: the headings, then the cells of each row; () for
            none.
        worst: index of the matrix with the largest utilisation; -1 for none.
        growth: factor of the demands at the horizon, which the purchases step uses.
    """

    title: str
    answer: str = ""
    findings: tuple[str, ...] = ()
    command: str = ""
    page: str = ""
    lines: Sequence[Sequence[str]] = ()
    worst: int = -1
    growth: float = 1.0

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Step:
        """Return the step that an entry of the journal records.

        Raises:
            InputError: the journal is of another version.
        """
        try:
            return cls(**{**entry, "findings": tuple(entry["findings"])})
        except TypeError:
            raise InputError.invalid(
                "--resume", JOURNAL, "another version of Teal wrote this journal", "use --overwrite"
            ) from None

    def section(self) -> Section:
        """Return the section of the page: findings, table, and the command with more detail."""
        # The page prints "TRAFFIC: FACTS" below the title: here "COMMAND: has more detail", or
        # "files: as read" for the input, which no command made.
        facts_of_command = "has more detail" + (
            f"; its results are in {self.page}" if self.page else ""
        )
        headings, *lines = self.lines or [()]
        columns = [Column(heading, itemgetter(column)) for column, heading in enumerate(headings)]
        return Section(
            title=self.title,
            traffic=self.command or "files",
            facts=facts_of_command if self.command else "as read",
            table=Table("", columns, lines),
            findings=self.findings,
        )


class AnalysisResult(NamedTuple):
    """A finished step.

    Attributes:
        report: result of the analysis; None if it failed.
        settings: settings of the analysis.
        step: summary for the page.
    """

    report: Any
    settings: Settings
    step: Step


@dataclasses.dataclass(frozen=True)
class Analyses:
    """Analyses of a survey; each method returns a result and the settings that produced it.

    Attributes:
        dag: shortest paths with the current metrics.
        traffic: the matrices, multiplied by the growth of the options.
        options: options of the survey.
        notify: called with the progress.
    """

    dag: EcmpDag
    traffic: TrafficMatrices
    options: SurveyOptions
    notify: Notify = lambda _: None

    def loads(self) -> tuple[Simulation, Settings]:
        """Return the link loads without failure and under each failure, and the settings of the
        simulation.
        """
        options = self.options
        settings: dict[str, Any] = {
            "failures": ("cables",),
            "groups": options.groups,
            "growth_per_year": options.growth_per_year,
            "horizon": options.horizon,
            "max_utilisation": options.max_utilisation,
        }
        simulate_options = SimulateOptions(**settings)
        return simulate(
            self.dag, self.traffic, simulate_options, self.notify, keeps_all=True
        ), settings

    def metrics(self) -> tuple[MetricsReport, Settings]:
        """Return few metric changes that reduce the largest utilisation most, and the settings of
        the search; Ctrl-C ends it with the best changes so far.
        """
        options = self.options
        settings: dict[str, Any] = {
            "failures": "cables",
            "groups": options.groups,
            "max_changes": options.changes,
            "deadline": options.deadline,
        }
        return improve(self.dag, self.traffic, MetricsOptions(**settings), self.notify), settings

    def policies(self) -> tuple[StaticReport, Settings]:
        """Return few segment routing policies with which every link respects the utilisation limit,
        and the settings of the search.

        If no lists respect the limit, the policies keep the largest utilisation within 1% of the
        smallest possible one.
        """
        limit = {"target_utilisation": self.options.max_utilisation}
        try:
            return self._policies(limit)
        # No lists respect the limit.
        except InputError as error:
            self.notify(str(error))
            return self._policies({"fewest_policies": "1%"})

    def _policies(self, policy_limit: Settings) -> tuple[StaticReport, Settings]:
        """Return the fewest policies within a utilisation, and the settings of the search.

        Args:
            policy_limit: target_utilisation or fewest_policies, the setting of
                :class:`SegmentsOptions` that gives the utilisation.
        """
        settings: dict[str, Any] = {
            "objective": "max_link_utilisation",
            "matrices": _MATRICES_TO_ROUTE,
            "survive": "cables",
            "groups": self.options.groups,
            "deadline": self.options.deadline,
            **policy_limit,
        }
        deadline = Deadline.after(seconds(self.options.deadline, "--deadline"))
        segment_options = SegmentsOptions(**settings)
        return solve_static(
            segment_options, self.dag, self.traffic, deadline, self.notify
        ), settings

    def purchases(self, growth: float) -> tuple[UpgradePlan, Settings]:
        """Return the capacity expansion with which every link respects the utilisation limit under
        every failure, and the settings of the search.

        Args:
            growth: factor of the demands at the horizon.
        """
        settings: dict[str, Any] = {
            "growth": growth,
            "routing": "ecmp",
            "groups": self.options.groups,
            "matrices": _MATRICES_TO_BUY_FOR,
            "max_utilisation": self.options.max_utilisation,
            "deadline": self.options.deadline,
        }
        upgrade_options = UpgradeOptions(**settings)
        return plan_upgrade(self.dag.topology, self.traffic, upgrade_options, self.notify), settings

    def attempt(self, name: str, growth: float = 1.0) -> AnalysisResult:
        """Return the result of a step of the survey; if a step after the loads fails, one without a
        report whose summary gives the reason.

        The other steps do not depend on it.

        Args:
            name: loads, metrics, policies or purchases.
            growth: factor of the demands at the horizon, for purchases.

        Raises:
            InputError: invalid input, found by the loads.
        """
        try:
            return self._run_step(name, growth)
        except TealError as error:
            if name == "loads":
                raise
            self.notify(f"step {name} failed: {error}")
            failed = Step(name.capitalize(), findings=(f"This step failed: {error}",))
            return AnalysisResult(None, {}, failed)

    def _run_step(self, name: str, growth: float) -> AnalysisResult:
        """Return the result of a step of the survey, with its settings and its summary.

        Args:
            name: loads, metrics, policies or purchases.
            growth: factor of the demands at the horizon, for purchases.
        """
        if name == "loads":
            simulation, settings = self.loads()
            return AnalysisResult(
                simulation, settings, loads_step(simulation, self.growth_of(simulation))
            )
        if name == "metrics":
            changes, settings = self.metrics()
            return AnalysisResult(changes, settings, metrics_step(changes, self.options))
        if name == "policies":
            lists, settings = self.policies()
            return AnalysisResult(lists, settings, policies_step(lists, self.options))
        plan, settings = self.purchases(growth)
        return AnalysisResult(plan, settings, purchases_step(plan, self.options, growth))

    def growth_of(self, simulation: Simulation) -> float:
        """Return the factor of the demands at the horizon, at least 1; 1 without growth in time."""
        if simulation.forecast is None:
            return 1.0
        return max(1.0, simulation.forecast.growth.factor(self.options.horizon_years))


# Command, its settings class, and its output file, by name of the step.
_COMMANDS: Mapping[str, tuple[str, Any, str]] = {
    "loads": ("simulate", SimulateConfig, f"{SIMULATE}/simulate.html"),
    "metrics": ("metrics", MetricsConfig, METRICS),
    "policies": ("segments", SegmentsConfig, POLICIES),
    "purchases": ("upgrade", UpgradeConfig, f"{UPGRADE}/upgrade.html"),
}


def write_step(folder: Path, name: str, finished: AnalysisResult, routers: Path | None) -> Step:
    """Write the result of a step; return its summary, with the command for more detail.

    A step without a report, which failed, is returned unchanged.

    Args:
        folder: folder of the survey, which has the files of network and traffic.
        name: loads, metrics, policies or purchases.
        finished: the finished step.
        routers: table of routers; None for none.
    """
    report = finished.report
    if report is None:
        return finished.step
    command, config_class, page = _COMMANDS[name]
    files = {"topology": str(folder / NETWORK), "traffic": str(folder / TRAFFIC)}
    config = config_class(**files, routers=routers, **finished.settings)
    manifest = {"manifest.json": partial(write_manifest, settings=config)}

    # Write the output files that the command of the step would write.
    if name == "loads":
        write_files(folder / SIMULATE, {**simulation_files(report), **manifest})
    elif name == "metrics":
        write_changes(folder / METRICS, report.changes, report.to_json())
    elif name == "policies":
        write_policies(folder / POLICIES, report.topology, report.policies, report.to_json())
    else:
        write_files(folder / UPGRADE, {**manifest, **plan_files(report)})
    return dataclasses.replace(finished.step, command=command_line(command, config), page=page)


def network_step(
    topology: Topology, notes: Sequence[str], traffic: TrafficMatrices | None, growth: float
) -> Step:
    """Return the step that summarises the input: assumptions and doubts about the network, its
    sizes, and the traffic.

    Args:
        topology: the network, with the current metrics.
        notes: assumptions of the import.
        traffic: the matrices, without growth; None if they come from counters.
        growth: factor of the demands.
    """
    # Assumptions and doubts as sentences, then the sizes of the network and its traffic.
    findings = [f"{note.rstrip('.')}." for note in notes]
    findings += [f"{doubt[0].upper()}{doubt[1:]}." for doubt in topology.doubts()]
    findings.append(
        f"{topology.num_nodes:,} nodes, {topology.num_links:,} directed links, "
        f"{len(topology.cables()):,} cables; capacities of "
        f"{_range(topology.capacity[topology.capacity > 0])} Gbit/s"
        + ("." if topology.metric is None else f", IGP metrics of {_range(topology.metric)}.")
    )
    if traffic is not None:
        growth_text = f", times {growth:g}" if growth != 1 else ""
        findings.append(f"{describe_traffic(traffic)}{growth_text}.")
    return Step("Input", findings=tuple(findings))


def loads_step(simulation: Simulation, growth: float) -> Step:
    """Return the step that summarises the loads without failure, the worst failures, and the
    outlook under growth.

    Args:
        simulation: the loads.
        growth: factor of the demands at the horizon.
    """
    findings = [] if simulation.forecast is None else [f"{forecast_sentence(simulation.forecast)}."]
    return Step(
        "Loads of today's routing, and the worst failures",
        answer=" ".join([loads_sentence(simulation), *findings]),
        findings=(loads_sentence(simulation), *findings),
        worst=simulation.worst_matrix.index,
        growth=growth,
        lines=failure_table(simulation, 1 + _MAX_LINES).texts(),
    )


def metrics_step(report: MetricsReport, options: SurveyOptions) -> Step:
    """Return the step that summarises the metric changes: their number, and the largest utilisation
    before and after.

    Args:
        report: result of the search for changes.
        options: options of the survey.
    """
    num_changes = len(report.changes)
    failure_kinds = failures_text(options)
    answer = (
        f"Changing {num_changes} metric{'' if num_changes == 1 else 's'} takes the largest "
        f"utilisation over the failure of {failure_kinds} from {percent(report.before)} to "
        f"{percent(report.utilisation)}."
        if num_changes
        else f"No change of at most {options.changes} metrics was found that lowers the "
        f"largest utilisation over the failure of {failure_kinds}."
    )
    return Step(
        "Metric changes against overload",
        answer=answer,
        findings=(answer, *report.describe().splitlines()),
        lines=change_table(report).texts(),
    )


def policies_step(report: StaticReport, options: SurveyOptions) -> Step:
    """Return the step that summarises the segment routing policies: their number, and the largest
    utilisation before and after.

    Args:
        report: segment lists that serve all matrices and failures.
        options: options of the survey.
    """
    # Answer: the policies and their effect; or no policy is needed; or no lists help, with the
    # bound rounded down to 0.01%.
    static_lists = report.lists
    failure_kinds = failures_text(options)
    num_policies = len(report.policies.lists)
    max_utilisation = options.max_utilisation
    answer = (
        f"{num_policies:,} segment routing polic{'y takes' if num_policies == 1 else 'ies take'} "
        f"the largest utilisation over the failure of {failure_kinds} from "
        f"{percent(static_lists.straight)} to {percent(static_lists.value)}."
        if num_policies
        else f"Under the failure of {failure_kinds}, no link passes {percent(max_utilisation)}, "
        "without any policy."
        if static_lists.value <= max_utilisation * (1 + _ROUNDING)
        else "No segment lists with one midpoint take the largest utilisation over the failure "
        f"of {failure_kinds} below {percent(math.floor(1e4 * static_lists.bound) / 1e4)}."
    )
    return Step(
        "Segment routing policies against overload",
        answer=answer,
        findings=(answer, *report.describe().splitlines()),
    )


def purchases_step(plan: UpgradePlan, options: SurveyOptions, growth: float) -> Step:
    """Return the step that summarises the capacity expansion: added capacity, and number of cables.

    Args:
        plan: the expansion.
        options: options of the survey.
        growth: factor of the demands at the horizon.
    """
    # Capacity to buy, or none, under which conditions; and an evaluation that the time limit ended.
    total_added = sum(purchase.bought for purchase in plan.purchases)
    growth_text = f" for demands {growth:.3g} times today's" if growth != 1 else ""
    limit = percent(options.max_utilisation)
    connected_text = ", for all demand that they leave connected" if plan.cut_off else ""
    answer = (
        f"Under today's routing, to keep every link at or below {limit} in every "
        f"failure{connected_text}{growth_text}, buy {total_added:.6g} Gbit/s on "
        f"{len(plan.purchases)} cable{'' if len(plan.purchases) == 1 else 's'}."
        if total_added > 0
        else f"Nothing must be bought to keep every link at or below {limit} in every "
        f"failure{connected_text}{growth_text}."
    )
    if plan.replayed is not None and not plan.replayed.is_complete:
        answer += f" The time limit ended the search: {plan.replayed}."
    return Step(
        "What to buy",
        answer=answer,
        findings=(answer, *plan.describe().splitlines()),
        lines=purchase_table(plan).texts(),
    )


def failures_text(options: SurveyOptions) -> str:
    """Describe the failures to examine: each cable, and each group if groups are given."""
    return "each single cable" + (" and each group" if options.groups is not None else "")


def command_line(name: str, config: Any) -> str:
    """Format a command with the settings that differ from their defaults, without its output.

    Args:
        name: name of the command.
        config: its settings.
    """
    # Option names and values; a value that begins with "-" is joined to its option by "=".
    words = ["teal", name]
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        option = f"--{field.name.replace('_', '-')}"
        if field.name in ("out", "overwrite") or value == field.default or value in ("", (), None):
            continue
        if value is True:
            words.append(option)
            continue
        for item in value if isinstance(value, tuple) else (value,):
            text = str(item.value if isinstance(item, Enum) else item)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)


def _range(numbers: Any) -> str:
    """Format the smallest and the largest of some numbers, or the only value."""
    low, high = (float(end(numbers)) if len(numbers) else 0.0 for end in (np.min, np.max))
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
