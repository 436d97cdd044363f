"""``teal survey``: run the analyses of a network in turn, and write one page of their answers.

Entry point: :func:`run_survey`; :class:`Survey` records finished steps in a journal, so that an
interrupted run can resume.
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
    write_step,
)
from teal_ip.surveys.settings import SurveyConfig
from teal_ip.surveys.survey import PAGE, STEP_NAMES, page_writer, traffic_writer

HISTORY = "history.npz"
MANIFEST = "manifest.json"
ESTIMATE = "estimate"
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
    """One run of ``teal survey``: reads the input, runs the steps and writes the page.

    Args:
        config: the settings.
        notify: called with notes on the input and with the progress.

    Attributes:
        steps: finished steps by name, those of an interrupted run included.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """

    def __init__(self, config: SurveyConfig, notify: Notify) -> None:
        """Read the input, open the journal, write the input to OUT, and restore finished steps."""
        self._config = config
        self._notify = notify
        if not config.resume:
            results = (*FILES, *FOLDERS, JOURNAL)
            check_out_folder(config.out, results, overwrite=config.overwrite, hint=RESUME_HINT)
        self._require_inputs_elsewhere()
        self._topology = topology_of(config)
        for note in self._topology.notes:
            notify(note)
        # The network with the IGP metrics and failed links of the settings, and its shortest paths.
        self._current_topology, self._dag = load_igp(config, self._topology, notify)
        # Traffic is read before anything slow, so that an error is reported at once.
        self._traffic = self._load_matrices(config.traffic)
        history = self._load_matrices(config.history)
        # Journal: with --resume the input must be that of the interrupted run.
        self._journal = Journal(config.out / JOURNAL, config, resume=config.resume)
        traffic_keys = [
            None if matrices is None else matrices.content_key()
            for matrices in (self._traffic, history)
        ]
        input_files = (config.counters, config.interfaces, config.routers, config.groups)
        # A missing file is reported by the step that reads it.
        input_keys = [file_key(file) for file in input_files if file is not None and file.is_file()]
        require_same(
            self._journal,
            content_key(self._current_topology.content_key(), *traffic_keys, *input_keys),
            "--resume",
        )
        if not config.resume:
            remove_files(config.out, FILES)
        # Write the input to OUT for the commands that analyse one question in more detail.
        write_files(config.out, {NETWORK: partial(save_topology, topology=self._current_topology)})
        if self._traffic is not None:
            self._save_matrices(TRAFFIC, self._traffic.scaled(config.growth))
        if history is not None:
            self._save_matrices(HISTORY, history)
        # Restore the finished steps of an interrupted run.
        self.steps: dict[str, Step] = {
            entry["name"]: Step.from_json(entry["step"]) for entry in self._journal.entries("step")
        }

    def _load_matrices(self, text: str) -> TrafficMatrices | None:
        """Return the matrices of an option, Gbit/s; None if it is empty.

        Args:
            text: file or name of the traffic; "" for none.
        """
        if not text:
            return None
        return load_traffic(text, self._topology, unit=self._config.traffic_unit)

    def _require_inputs_elsewhere(self) -> None:
        """Raise InputError for an input file inside the output folder."""
        config = self._config
        out = self._config.out.resolve()
        for option in (
            "topology",
            "traffic",
            "history",
            "counters",
            "interfaces",
            "routers",
            "groups",
        ):
            value = getattr(config, option)
            if value and Path(value).exists() and Path(value).resolve().is_relative_to(out):
                raise InputError.invalid(
                    "--out",
                    "",
                    f"{config.out} contains the file of --{option}",
                    "choose another folder",
                )

    def _save_matrices(self, name: str, traffic: TrafficMatrices) -> None:
        """Write matrices to the file ``name`` in OUT."""
        write_files(self._config.out, {name: traffic_writer(traffic, self._topology)})

    def run(self) -> list[Step]:
        """Run the missing steps, then write the page; an interruption writes the page of the steps
        so far.

        Returns:
            all steps, in order.

        Raises:
            InputError: invalid files.
        """
        # Steps in order: the input, the matrix from counters if there are any, and the analyses.
        step_functions: dict[str, Callable[[], Step]] = {"network": self._network_step}
        if self._config.counters is not None:
            step_functions["matrix"] = self._matrix_step
        step_functions |= {name: partial(self._analysis_step, name) for name in STEP_NAMES}
        # Run the steps that the journal lacks, and record each one.
        try:
            for step_number, (name, run_step) in enumerate(step_functions.items(), 1):
                if name in self.steps:
                    continue
                self._notify(f"survey, step {step_number} of {len(step_functions)}: {name}")
                self.steps[name] = run_step()
                self._journal.add(
                    "step", {"name": name, "step": dataclasses.asdict(self.steps[name])}
                )
        except BaseException as error:
            # A failure before the first analysis leaves OUT unchanged.
            if isinstance(error, Exception) and set(self.steps) <= {"network"}:
                self._journal.remove()
                remove_files(self._config.out, FILES)
            else:
                self._write_page()
            raise
        self._write_page()
        self._journal.remove()
        return list(self.steps.values())

    def _write_page(self) -> None:
        """Write the page of the finished steps, and the manifest, to OUT."""
        files: dict[str, Callable[[Path], None]] = {
            PAGE: page_writer(self._topology, list(self.steps.values())),
            MANIFEST: partial(write_manifest, settings=self._config),
        }
        write_files(self._config.out, files)

    def _counter_arguments(self) -> dict[str, Any]:
        """Return the settings of ``teal estimate`` that the survey passes on."""
        counter_settings = {field: getattr(self._config, field) for field in _COUNTER_SETTINGS}
        history = str(self._config.out / HISTORY) if self._config.history else ""
        return {"topology": str(self._config.out / NETWORK), **counter_settings, "history": history}

    def _network_step(self) -> Step:
        """Return the step that summarises the input: network, and matrices unless they come from
        counters.
        """
        inputs = (self._topology.notes, self._traffic, self._config.growth)
        return network_step(self._current_topology, *inputs)

    def _matrix_step(self) -> Step:
        """Estimate the traffic matrix from counters, write it to OUT, and return the step."""
        config = EstimateConfig(
            **self._counter_arguments(), out=self._config.out / ESTIMATE, overwrite=True
        )
        run = run_estimate(config, self._notify)
        self._save_matrices(TRAFFIC, run.traffic.scaled(self._config.growth))
        return Step(
            "The traffic matrix from the counters",
            findings=tuple(
                f"{line[:1].upper()}{line[1:]}." for line in run.describe().splitlines()
            ),
            command=command_line("estimate", config),
            page="estimate/estimate.html",
        )

    def _analysis_step(self, name: str) -> Step:
        """Run an analysis, write its results to OUT, and return the step.

        Ctrl-C during the search for metrics ends it with the best changes so far; the survey then
        stops without recording the step, so that a resumed run repeats it.

        Args:
            name: loads, metrics, policies or purchases.
        """
        # The matrices in OUT include the growth of the options.
        config = self._config
        traffic = load_traffic(str(config.out / TRAFFIC), self._current_topology)
        analyses = Analyses(self._dag, traffic, config, self._notify)
        growth = self.steps["loads"].growth if name != "loads" else 1.0
        interrupts: list[bool] = []

        def interrupt() -> None:
            """Record Ctrl-C, and end the search."""
            interrupts.append(True)
            raise KeyboardInterrupt

        # Only the search for metrics returns after Ctrl-C; the other analyses are interrupted.
        if name != "metrics":
            return write_step(config.out, name, analyses.attempt(name, growth), config.routers)
        with on_interrupt(interrupt):
            finished = analyses.attempt(name, growth)
        # The result of an interrupted search is not recorded.
        if interrupts:
            raise KeyboardInterrupt
        return write_step(config.out, name, finished, config.routers)


def run_survey(config: SurveyConfig, notify: Notify) -> list[Step]:
    """Run all steps of a survey, write its page, and return the steps in order.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings or files, or existing results in OUT without --overwrite.
    """
    return Survey(config, notify).run()


def survey_outcome(config: SurveyConfig, notify: Notify) -> Outcome:
    """Run ``teal survey``; return the answers at the top of the page, and the page's file.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    steps = run_survey(config, notify)
    return Outcome(
        text="\n".join(step.answer for step in steps if step.answer),
        written=f"{config.out / PAGE}: open it in a browser",
        data={
            "page": str(config.out / PAGE),
            "answers": {step.title: step.answer for step in steps if step.answer},
        },
    )
