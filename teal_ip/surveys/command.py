"""`teal survey`: the commands that a network engineer would run one after the other, and one page
of their answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from teal.app.command import Notify, Outcome
from teal.app.run_files import (
    JOURNAL,
    RESUME_HINT,
    Journal,
    require_same,
    write_files,
    write_manifest,
)
from teal.errors import InputError
from teal.formats import load_traffic, save_topology, topology_of
from teal.network import TrafficMatrices
from teal.runtime.interrupts import on_interrupt
from teal.runtime.storage import check_out_folder, content_key, file_key, remove_files
from teal_ip.counters.commands import run_estimate
from teal_ip.counters.settings import EstimateConfig
from teal_ip.routing.igp import load_igp
from teal_ip.surveys.analyses import (
    METRICS,
    NETWORK,
    POLICIES,
    SIMULATE,
    TRAFFIC,
    UPGRADE,
    Analyses,
    Step,
    command_line,
    network_step,
    written,
)
from teal_ip.surveys.settings import SurveyConfig
from teal_ip.surveys.survey import NAMES, PAGE, page_writer, traffic_writer

HISTORY, MANIFEST, ESTIMATE = "history.npz", "manifest.json", "estimate"
FILES = (PAGE, NETWORK, TRAFFIC, HISTORY, METRICS, POLICIES, MANIFEST)
FOLDERS = (ESTIMATE, SIMULATE, UPGRADE)
_COUNTER_SETTINGS = (
    "counters",
    "interfaces",
    "ignore_interfaces",
    "counter_error",
    "counter_unit",
    "routers",
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
            results = (*FILES, *FOLDERS, JOURNAL)
            check_out_folder(config.out, results, overwrite=config.overwrite, hint=RESUME_HINT)
        self._require_inputs_elsewhere()
        self._topology = topology_of(config)
        for note in self._topology.notes:
            notify(note)
        self._installed, self._dag = load_igp(config, self._topology, notify)
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
        write_files(self._config.out, {name: traffic_writer(traffic, self._topology)})

    def run(self) -> list[Step]:
        """Do what is missing, then write the page; an interruption writes the page of what there is
        so far.

        Raises:
            InputError: a fault in the files.
        """
        kinds: dict[str, Callable[[], Step]] = {"network": self._network}
        if self._config.counters is not None:
            kinds["matrix"] = self._matrix
        kinds |= {name: partial(self._analysed, name) for name in NAMES}
        try:
            for number, (name, step) in enumerate(kinds.items(), 1):
                if name in self.steps:
                    continue
                self._notify(f"survey, {number} of {len(kinds)}: {name}")
                self.steps[name] = step()
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

    def _write(self) -> None:
        files: dict[str, Callable[[Path], None]] = {
            PAGE: page_writer(self._topology, list(self.steps.values())),
            MANIFEST: partial(write_manifest, settings=self._config),
        }
        write_files(self._config.out, files)

    def _with_counters(self) -> dict[str, Any]:
        read = {field: getattr(self._config, field) for field in _COUNTER_SETTINGS}
        history = str(self._config.out / HISTORY) if self._config.history else ""
        return {"topology": str(self._config.out / NETWORK), **read, "history": history}

    # The steps.

    def _network(self) -> Step:
        given = (self._topology.notes, self._traffic, self._config.growth)
        return network_step(self._installed, *given)

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

    def _analysed(self, name: str) -> Step:
        config = self._config
        traffic = load_traffic(str(config.out / TRAFFIC), self._installed)
        analyses = Analyses(self._dag, traffic, config, self._notify)
        growth = self.steps["loads"].growth if name != "loads" else 1.0
        signals: list[bool] = []

        def interrupt() -> None:
            signals.append(True)
            raise KeyboardInterrupt

        if name != "metrics":
            return written(config.out, name, analyses.attempt(name, growth), config.routers)
        with on_interrupt(interrupt):
            done = analyses.attempt(name, growth)
        if signals:  # the search has ended with the best so far, which a resumed run does not keep
            raise KeyboardInterrupt
        return written(config.out, name, done, config.routers)


def run_survey(config: SurveyConfig, notify: Notify) -> list[Step]:
    """All steps of a survey, and its page.

    Raises:
        InputError: a fault in the settings or files, or results in OUT that must not be replaced.
    """
    return Survey(config, notify).run()


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
