"""`teal survey`: the commands that a network engineer would run one after the other, and one page
of their answers.
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
from typing import Any

import numpy as np

from teal.app.command import Outcome
from teal.app.instance import describe_traffic
from teal.app.page import Section, write_page
from teal.app.run_files import (
    JOURNAL,
    RESUME_HINT,
    Journal,
    require_same,
    write_files,
    write_manifest,
)
from teal.app.table import Column, Table
from teal.app.text import percent
from teal.errors import InputError, TealError
from teal.formats import load_traffic, save_topology, save_traffic, topology_of
from teal.network import TrafficMatrices
from teal.runtime.interrupts import on_interrupt
from teal.runtime.storage import check_out_folder, content_key, file_key, remove_files
from teal_ip.counters.commands import run_estimate
from teal_ip.counters.settings import EstimateConfig
from teal_ip.metrics.command import change_table, run_metrics
from teal_ip.metrics.settings import MetricsConfig
from teal_ip.purchases.command import purchase_table, run_upgrade
from teal_ip.purchases.settings import UpgradeConfig
from teal_ip.routing.igp import load_igp
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate_command import failure_table, loads_sentence, run_simulate, summary
from teal_ip.segments.command import StaticReport, run_segments
from teal_ip.segments.settings import SegmentsConfig
from teal_ip.surveys.settings import SurveyConfig

FILES = PAGE, NETWORK, TRAFFIC, HISTORY, METRICS, POLICIES, MANIFEST = (
    "survey.html",
    "network.json",
    "traffic.npz",
    "history.npz",
    "metrics.json",
    "policies.json",
    "manifest.json",
)
FOLDERS = ESTIMATE, SIMULATE, UPGRADE = "estimate", "simulate", "upgrade"
_MAX_LINES = 15  # failures on the page
_ROUNDING = 1e-6  # relative, of a utilisation at its limit
_MATRICES_TO_ROUTE = 8  # at first, the worst of some failure; all are replayed
_MATRICES_TO_BUY_FOR = 24  # evenly spread over the traffic; the others are replayed on the plan

Notify = Callable[[str], None]
_COUNTER_SETTINGS = (
    "counters",
    "interfaces",
    "ignore_interfaces",
    "counter_error",
    "counter_unit",
    "routers",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """The result of one step of a survey: a section of the page and an entry of the journal.

    Attributes:
        title: title of the section.
        answer: a sentence for the beginning of the page; "" for none.
        findings: sentences.
        command: command line that goes deeper; "" for none.
        page: what that command has written, relative to OUT; "" for nothing.
        lines: table: the headings, then the texts of each line; () for none.
        worst: number of the matrix with the largest utilisation, for later steps; -1 for none.
        growth: factor of the demands at the horizon, for later steps.
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
        """The step that was stored as a mapping."""
        try:
            return cls(**{**entry, "findings": tuple(entry["findings"])})
        except TypeError:
            raise InputError(
                "--resume", JOURNAL, "the journal of a survey of this version", "another one"
            ) from None

    def section(self) -> Section:
        """The section of the page."""
        facts = "goes deeper" + (f"; its results are in {self.page}" if self.page else "")
        headings, *lines = self.lines or [()]
        columns = [Column(heading, itemgetter(place)) for place, heading in enumerate(headings)]
        return Section(
            title=self.title,
            traffic=self.command or "files",
            facts=facts if self.command else "as they were read",
            table=Table("", columns, lines),
            findings=self.findings,
        )


class Survey:
    """One run of `teal survey`.

    Args:
        config: the settings.
        notify: called with what was read, and with progress.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """

    def __init__(self, config: SurveyConfig, notify: Notify) -> None:
        self._config, self._notify = config, notify
        if not config.resume:
            written = (*FILES, *FOLDERS, JOURNAL)
            check_out_folder(config.out, written, overwrite=config.overwrite, hint=RESUME_HINT)
        self._require_inputs_elsewhere()
        self._topology = topology_of(config)
        for note in self._topology.notes:
            notify(note)
        self._installed, _ = load_igp(config, self._topology, notify)
        # Read before anything slow, so that a fault shows at once.
        self._traffic = self._matrices(config.traffic)
        history = self._matrices(config.history)
        self._journal = Journal(config.out / JOURNAL, config, resume=config.resume)
        keys = [None if one is None else one.content_key() for one in (self._traffic, history)]
        given = (config.counters, config.interfaces, config.routers, config.groups)
        files = [
            file_key(file) for file in given if file is not None and file.is_file()
        ]  # a step reports the others
        require_same(
            self._journal, content_key(self._installed.content_key(), *keys, *files), "--resume"
        )
        if not config.resume:
            remove_files(config.out, FILES)
        write_files(config.out, {NETWORK: partial(save_topology, topology=self._installed)})
        if self._traffic is not None:
            self._save(TRAFFIC, self._traffic.scaled(config.growth))
        if history is not None:
            self._save(HISTORY, history)
        self.steps: dict[str, Step] = {
            entry["name"]: Step.from_json(entry["step"]) for entry in self._journal.entries("step")
        }

    def _matrices(self, text: str) -> TrafficMatrices | None:
        """The matrices of a file, Gbit/s; None where none is named."""
        if not text:
            return None
        return load_traffic(text, self._topology, unit=self._config.traffic_unit)

    def _require_inputs_elsewhere(self) -> None:
        """Raise InputError for a file that is read and lies where the survey writes."""
        config, out = self._config, self._config.out.resolve()
        for option in (
            "topology",
            "traffic",
            "history",
            "counters",
            "interfaces",
            "routers",
            "groups",
        ):
            given = getattr(config, option)
            if given and Path(given).exists() and Path(given).resolve().is_relative_to(out):
                raise InputError(
                    "--out", "", f"another folder than that of --{option}", str(config.out)
                )

    def _save(self, name: str, traffic: TrafficMatrices) -> None:
        """Write matrices in float64: a load at its limit stays there."""
        write = partial(save_traffic, traffic=traffic, topology=self._topology, exact=True)
        write_files(self._config.out, {name: write})

    def run(self) -> list[Step]:
        """Do what is missing, then write the page; an interruption writes the page of what there is
        so far.

        Raises:
            InputError: a fault in the files.
        """
        kinds: dict[str, Callable[[], Step]] = {"network": self._network}
        if self._config.counters is not None:
            kinds["matrix"] = self._matrix
        kinds |= {
            "loads": self._loads,
            "metrics": self._metrics,
            "policies": self._policies,
            "purchases": self._purchases,
        }
        try:
            for number, (name, step) in enumerate(kinds.items(), 1):
                if name in self.steps:
                    continue
                self._notify(f"survey, {number} of {len(kinds)}: {name}")
                self.steps[name] = self._attempt(name, step)
                self._journal.add(
                    "step", {"name": name, "step": dataclasses.asdict(self.steps[name])}
                )
        except BaseException as error:
            if isinstance(error, Exception) and set(self.steps) <= {
                "network"
            }:  # OUT is as if nobody had asked
                self._journal.remove()
                remove_files(self._config.out, FILES)
            else:
                self._write()
            raise
        self._write()
        self._journal.remove()
        return list(self.steps.values())

    def _attempt(self, name: str, step: Callable[[], Step]) -> Step:
        """A step; where it fails behind the loads, a section that says why, since the others do not
        depend on it.
        """
        try:
            return step()
        except TealError as error:
            if name in ("network", "matrix", "loads"):
                raise
            self._notify(f"{name}: {error}")
            return Step(name.capitalize(), findings=(f"This step failed: {error}",))

    def _write(self) -> None:
        steps = list(self.steps.values())
        answers = " ".join(step.answer for step in steps if step.answer)
        files: dict[str, Callable[[Path], None]] = {
            PAGE: partial(
                write_page,
                heading=f"Survey of {self._topology.name}",
                introduction=answers or "Interrupted.",
                sections=[step.section() for step in steps],
            ),
            MANIFEST: partial(write_manifest, settings=self._config),
        }
        write_files(self._config.out, files)

    # The settings that commands have in common.

    def _with_traffic(self) -> dict[str, Any]:
        files = {
            "topology": str(self._config.out / NETWORK),
            "traffic": str(self._config.out / TRAFFIC),
        }
        return {**files, "routers": self._config.routers}

    def _with_counters(self) -> dict[str, Any]:
        read = {field: getattr(self._config, field) for field in _COUNTER_SETTINGS}
        history = str(self._config.out / HISTORY) if self._config.history else ""
        return {"topology": str(self._config.out / NETWORK), **read, "history": history}

    # The steps.

    def _network(self) -> Step:
        topology, findings = (
            self._installed,
            [f"{note.rstrip('.')}." for note in self._topology.notes],
        )
        findings += [f"{doubt[0].upper()}{doubt[1:]}." for doubt in topology.doubts()]
        findings.append(
            f"{topology.num_nodes:,} nodes, {topology.num_links:,} directed links, "
            f"{len(topology.cables()):,} cables; "
            f"capacities of {_range(topology.capacity[topology.capacity > 0])} Gbit/s"
            + ("." if topology.metric is None else f", IGP metrics of {_range(topology.metric)}.")
        )
        if self._traffic is not None:
            times = f", times {self._config.growth:g}" if self._config.growth != 1 else ""
            findings.append(f"{describe_traffic(self._traffic)}{times}.")
        return Step("What was read", findings=tuple(findings))

    def _matrix(self) -> Step:
        config = EstimateConfig(
            **self._with_counters(), out=self._config.out / ESTIMATE, overwrite=True
        )
        run = run_estimate(config, self._notify)
        self._save(TRAFFIC, run.traffic.scaled(self._config.growth))
        return Step(
            "The traffic matrix from the counters",
            findings=tuple(
                f"{line[:1].upper()}{line[1:]}." for line in run.describe().splitlines()
            ),
            command=command_line("estimate", config),
            page="estimate/estimate.html",
        )

    def _loads(self) -> Step:
        config = SimulateConfig(
            **self._with_traffic(),
            failures=("cables",),
            groups=self._config.groups,
            growth_per_year=self._config.growth_per_year,
            horizon=self._config.horizon,
            max_utilisation=self._config.max_utilisation,
            out=self._config.out / SIMULATE,
            overwrite=True,
        )
        found = run_simulate(config, self._notify)
        findings, factor = [], 1.0
        if found.outlook is not None:
            findings.append(f"{summary(found.outlook)}.")
            factor = max(1.0, found.outlook.growth.factor(self._config.horizon_years))
        return Step(
            "Loads of today's routing, and the worst failures",
            answer=" ".join([loads_sentence(found), *findings]),
            findings=(loads_sentence(found), *findings),
            command=command_line("simulate", config),
            page="simulate/simulate.html",
            worst=found.worst_matrix.index,
            growth=factor,
            lines=failure_table(found, 1 + _MAX_LINES).texts(),
        )

    def _metrics(self) -> Step:
        config = MetricsConfig(
            **self._with_traffic(),
            failures="cables",
            groups=self._config.groups,
            at_most=self._config.changes,
            deadline=self._config.deadline,
            out=self._config.out / METRICS,
            overwrite=True,
        )
        signals: list[bool] = []

        def interrupt() -> None:
            signals.append(True)
            raise KeyboardInterrupt

        with on_interrupt(interrupt):
            report = run_metrics(config, self._notify)
        if signals:  # the search has ended with the best so far, which a resumed run does not keep
            raise KeyboardInterrupt
        count = len(report.changes)
        events = self._events()
        answer = (
            f"Changing {count} metric{'' if count == 1 else 's'} takes the largest utilisation "
            "over the failure of "
            f"{events} from {percent(report.before)} to {percent(report.utilisation)}."
            if count
            else f"No change of at most {self._config.changes} metrics was found that lowers the "
            "largest utilisation "
            f"over the failure of {events}."
        )
        return Step(
            "Metrics that mend most",
            answer=answer,
            findings=(answer, *report.describe().splitlines()),
            command=command_line("metrics", config),
            page=METRICS,
            lines=change_table(report).texts(),
        )

    def _events(self) -> str:
        """The failures that are asked for, in words."""
        return "each single cable" + (" and each group" if self._config.groups is not None else "")

    def _policies(self) -> Step:
        settings = {
            **self._with_traffic(),
            "objective": "max_link_utilisation",
            "matrices": _MATRICES_TO_ROUTE,
            "survive": "cables",
            "groups": self._config.groups,
            "deadline": self._config.deadline,
            "out": self._config.out / POLICIES,
            "overwrite": True,
        }
        config = SegmentsConfig(**settings, target_utilisation=self._config.max_utilisation)
        try:
            report = run_segments(config, self._notify)
        except InputError as error:  # no lists keep the limit: those that come near the best
            self._notify(str(error))
            config = SegmentsConfig(**settings, fewest_policies="1%")
            report = run_segments(config, self._notify)
        assert isinstance(report, StaticReport)
        lists = report.lists
        count, limit = len(report.policies.lists), self._config.max_utilisation
        answer = (
            f"{count:,} segment routing polic{'y takes' if count == 1 else 'ies take'} the largest "
            "utilisation over "
            f"the failure of {self._events()} from {percent(lists.straight)} to "
            f"{percent(lists.value)}."
            if count
            else f"Under the failure of {self._events()}, no link passes {percent(limit)}, without "
            "any policy."
            if lists.value <= limit * (1 + _ROUNDING)
            else "No segment lists with one midpoint take the largest utilisation over the failure "
            "of "
            f"{self._events()} below {percent(math.floor(1e4 * lists.bound) / 1e4)}."
        )
        return Step(
            "Few policies that mend most, whatever fails",
            answer=answer,
            findings=(answer, *report.describe().splitlines()),
            command=command_line("segments", config),
            page=POLICIES,
        )

    def _purchases(self) -> Step:
        config = UpgradeConfig(
            **self._with_traffic(),
            growth=self.steps["loads"].growth,
            routing="ecmp",
            groups=self._config.groups,
            matrices=_MATRICES_TO_BUY_FOR,
            max_utilisation=self._config.max_utilisation,
            deadline=self._config.deadline,
            out=self._config.out / UPGRADE,
            overwrite=True,
        )
        plan = run_upgrade(config, self._notify)
        total = sum(one.bought for one in plan.purchases)
        when = f" for demands {config.growth:.3g} times today's" if config.growth != 1 else ""
        limit = percent(config.max_utilisation)
        connected = ", for all demand that they leave connected" if plan.cut_off else ""
        answer = (
            f"Under today's routing, to keep every link at or below {limit} in every "
            f"failure{connected}{when}, buy "
            f"{total:.6g} Gbit/s on {len(plan.purchases)} "
            f"cable{'' if len(plan.purchases) == 1 else 's'}."
            if total > 0
            else f"Nothing must be bought to keep every link at or below {limit} in every "
            f"failure{connected}{when}."
        )
        if plan.replayed is not None and not plan.replayed.is_complete:
            answer += f" Time was over: {plan.replayed}."
        return Step(
            "What to buy",
            answer=answer,
            findings=(answer, *plan.describe().splitlines()),
            command=command_line("upgrade", config),
            page="upgrade/upgrade.html",
            lines=purchase_table(plan).texts(),
        )


def run_survey(config: SurveyConfig, notify: Notify) -> list[Step]:
    """All steps of a survey, and its page.

    Raises:
        InputError: a fault in the settings or files, or results in OUT that must not be replaced.
    """
    return Survey(config, notify).run()


def command_line(name: str, config: Any) -> str:
    """The command with the settings that differ from its defaults, as it is typed; without those of
    its output.
    """
    words = ["teal", name]
    for field in dataclasses.fields(config):
        value, option = getattr(config, field.name), f"--{field.name.replace('_', '-')}"
        if field.name in ("out", "overwrite") or value == field.default or value in ("", (), None):
            continue
        if value is True:
            words.append(option)
            continue
        for one in value if isinstance(value, tuple) else (value,):
            text = str(one.value if isinstance(one, Enum) else one)
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return shlex.join(words)


def _range(numbers: Any) -> str:
    low, high = (float(end(numbers)) if len(numbers) else 0.0 for end in (np.min, np.max))
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def survey_outcome(config: SurveyConfig, notify: Notify) -> Outcome:
    """`teal survey`: the sentences with which the page begins."""
    steps = run_survey(config, notify)
    return Outcome(
        text="\n".join(step.answer for step in steps if step.answer),
        written=f"{config.out / PAGE}: open it in a browser",
        data={
            "page": str(config.out / PAGE),
            "answers": {step.title: step.answer for step in steps if step.answer},
        },
    )
