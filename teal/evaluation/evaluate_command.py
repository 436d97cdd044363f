"""`teal evaluate`: schemes x protocols x networks, stored on disk as they go, so that an
interrupted run continues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from teal.app.command import EXIT_FAILED, EXIT_OK, Notify, Outcome
from teal.app.instance import Instance, load_instance, rows_of
from teal.app.run_files import (
    JOURNAL,
    RESUME_HINT,
    Journal,
    describe_machine,
    write_files,
    write_manifest,
)
from teal.app.settings import seconds
from teal.app.warm_up import compile_first
from teal.errors import InputError
from teal.evaluation.cases import Cases, Protocol, parse_levels, selection_text
from teal.evaluation.evaluate import Evaluation
from teal.evaluation.fairness_curve import fairness_curve
from teal.evaluation.intervals import DIFFERENCES, SUMMARY, difference_rows, mean_rows
from teal.evaluation.race import race_outcome
from teal.evaluation.record import (
    NETWORKS,
    ROWS,
    TABLE,
    UTILISATION,
    NetworkRecord,
    Record,
    ResultKey,
)
from teal.evaluation.report import plot_results, write_report
from teal.evaluation.rows import CaseResult, Row
from teal.evaluation.settings import DEFAULT_SCHEMES, EvaluateConfig
from teal.evaluation.table import summaries_of, summary_tables
from teal.formats.rows import from_text, write_csv
from teal.network import Topology
from teal.network.traffic import spread
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import check_out_folder, content_key, remove_files
from teal.schemes import Scheme, make_scheme, scheme_names
from teal.schemes.models import model_of_each

MANIFEST, PLOT, REPORT = "manifest.json", "results.png", "report.html"
_DEFAULT_INTERVAL_S = 300  # seconds from one matrix to the next, for traffic of unknown interval
_UTILISATION_DECIMALS = 4  # of a utilisation in the journal
FILES = (JOURNAL, ROWS, TABLE, UTILISATION, NETWORKS, MANIFEST, SUMMARY, DIFFERENCES, PLOT, REPORT)


class EvaluationStudy:
    """One run of `teal evaluate`.

    Args:
        config: the settings.
        notify: called with what was assumed and found, and with failures.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced; nothing is
            written then.
    """

    def __init__(
        self, config: EvaluateConfig, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        self._config, self._notify = config, notify
        self._levels = {
            Protocol.FAILURES: parse_levels("--failures", config.failures, counted=True),
            Protocol.NOISE: parse_levels("--noise", config.noise),
            Protocol.SPATIAL: parse_levels("--spatial", config.spatial, shares=True),
            Protocol.SCALE: parse_levels("--scale", config.scale),
            Protocol.CHURN: parse_levels("--churn", config.churn, shares=True),
        }
        self._journal: Journal | None = None
        if config.resume:
            self._journal = Journal(config.out / JOURNAL, config, resume=True)
            self._journal.add("machine", describe_machine())
        else:
            check_out_folder(config.out, FILES, overwrite=config.overwrite, hint=RESUME_HINT)

    def run(self) -> Record:
        """Evaluate what is missing, then write results and report; an interruption writes the rows
        so far.
        """
        schemes = self._schemes()  # of all networks, so that a fault shows before anything slow
        networks = self._networks()
        try:
            for number, (instance, cases) in networks.items():
                self._evaluate_network(number, instance, cases, schemes[number])
        except BaseException:
            rows = self._record().rows if self._journal is not None else []
            if rows:
                write_files(self._config.out, {ROWS: partial(write_csv, rows=rows)})
            raise
        assert self._journal is not None
        record = self._record()
        self._publish(record)
        return record

    def _schemes(self) -> list[dict[str, Scheme]]:
        """The schemes of each network.  One that lacks a model for some networks fails its rows
        there.
        """
        by_network: list[dict[str, Scheme]] = []
        for model in self._config.models():
            by_network.append({})
            for name, own in model_of_each(
                chosen_schemes(self._config), model, self._notify
            ).items():
                try:
                    by_network[-1][name] = make_scheme(name, own)
                except InputError as error:
                    by_network[-1][name] = _Unavailable(error)
        for name in {name for schemes in by_network for name in schemes}:
            made = [schemes[name] for schemes in by_network if name in schemes]
            if all(isinstance(scheme, _Unavailable) for scheme in made):
                raise made[0].error  # type: ignore[attr-defined]
        return by_network

    def _networks(self) -> dict[int, tuple[Instance, Cases]]:
        """The networks that are not complete, all loaded, so that no fault shows after hours of
        measuring.
        """
        complete = {entry["network"] for entry in self._entries("complete")}
        begun = {entry["network"]: entry for entry in self._entries("network")}
        networks, names = {}, [(entry["topology"], entry["traffic"]) for entry in begun.values()]
        for number, config in enumerate(self._config.instances()):
            if number in complete:
                continue
            instance = load_instance(config, self._notify, on_topology=self._compile)
            cases = self._cases(instance)
            down = np.flatnonzero(cases.topology.capacity == 0).tolist()
            instance = instance.surviving(
                [down, *([*down, *links] for links in cases.failures())], self._notify
            )
            if number in begun:
                if begun[number]["content"] != self._content(instance):
                    expected = "the topology, traffic and paths of the interrupted run"
                    raise InputError(config.topology, "", expected, "a different one")
            else:
                name = instance.topology.name, instance.traffic.name
                if name in names:
                    raise InputError(
                        "--topology",
                        "",
                        "each network and traffic once",
                        " with ".join(name) + " twice",
                    )
                names.append(name)
            networks[number] = instance, cases
            self._interval_s(instance)  # checks the setting
        return networks

    def _compile(self, topology: Topology) -> None:
        """Compile for the schemes, in several processes, before the first of them is called."""
        compile_first(
            self._notify,
            topology.num_nodes * (topology.num_nodes - 1),
            chosen_schemes(self._config),
        )

    def _evaluate_network(
        self, number: int, instance: Instance, cases: Cases, schemes: dict[str, Scheme]
    ) -> None:
        done = {
            entry["key"]: [from_text(Row, row) for row in entry["rows"]]
            for entry in self._entries("case")
            if entry["network"] == number
        }
        excluded = {
            e["scheme"]: e["reason"] for e in self._entries("left_out") if e["network"] == number
        }
        is_described = any(entry["network"] == number for entry in self._entries("network"))
        evaluation = Evaluation(
            instance,
            schemes,
            time_limit=seconds(self._config.time_limit, "--time-limit"),
            interval_s=self._interval_s(instance),
            is_proving=self._config.prove,
            strict=len(self._config.topology) == 1,
            notify=self._notify,
            already_excluded=dict(excluded),
        )
        with _closing(evaluation.run(cases, done)) as results:
            for result in results:
                if not is_described:
                    network = NetworkRecord.of(
                        instance.topology,
                        instance.traffic.name,
                        self._content(instance),
                        self._selection(instance),
                    )
                    self._add("network", {"network": number, **network.to_json()})
                    is_described = True
                for scheme, reason in evaluation.excluded.items():
                    if scheme not in excluded:
                        excluded[scheme] = reason
                        self._add(
                            "left_out", {"network": number, "scheme": scheme, "reason": reason}
                        )
                self._add("case", {"network": number, **_case_entry(result)})
        self._add("fairness", {"network": number, "points": self._fairness(instance, cases)})
        self._add("complete", {"network": number})

    def _fairness(self, instance: Instance, cases: Cases) -> list[tuple[Any, ...]]:
        """The price of fairness on the first matrix, under a concave utility of shares; [] where it
        fails.
        """
        if instance.objective.rules.alpha is None:
            return []
        self._notify("what fairness costs: alpha-fair shares of the first matrix, for the chart")
        first = next(iter(cases))
        try:
            found = fairness_curve(instance.problem(first.demand, capacity=first.capacity))
        except Exception as error:  # the results of the run do not depend on its chart
            self._notify(f"no chart of what fairness costs: {error}")
            return []
        return [dataclasses.astuple(point) for point in found]

    def _interval_s(self, instance: Instance) -> float:
        """Seconds of an interval of the online protocol; 0 without it."""
        config, usual = self._config, instance.traffic.interval_s or _DEFAULT_INTERVAL_S
        if not config.online:
            return 0.0
        if instance.objective.rules.carries_all:
            raise InputError(
                "--online", "objective", "one that maximises flow", instance.objective.name
            )
        return seconds(config.interval, "--interval") if config.interval else float(usual)

    def _content(self, instance: Instance) -> str:
        """Content key that rows of two runs must share to be compared."""
        config = self._config
        return content_key(
            instance.topology.content_key(),
            instance.traffic.content_key(),
            instance.paths.key,
            instance.objective,
            config.fail,
            config.seed,
            *instance.worth,
        )

    def _rows(self, instance: Instance) -> Int64Array:
        """The matrices that are evaluated."""
        rows = rows_of(instance, self._config.split)
        return (
            rows[: self._config.limit or None]
            if self._config.online
            else spread(rows, self._config.limit)
        )

    def _selection(self, instance: Instance) -> str:
        return selection_text(
            len(self._rows(instance)), instance, self._config, is_consecutive=self._config.online
        )

    def _cases(self, instance: Instance) -> Cases:
        config, topology = self._config, instance.topology
        if config.fail:
            failed = topology.links_named(config.fail, "--fail")
            self._notify("failed: " + ", ".join(topology.link_name(link) for link in failed))
            topology = topology.with_failed_links(failed)
        return Cases(
            topology,
            instance.traffic,
            self._rows(instance),
            self._levels,
            config.draws,
            config.seed,
        )

    def _entries(self, kind: str) -> Iterable[dict[str, Any]]:
        return () if self._journal is None else self._journal.entries(kind)

    def _add(self, kind: str, entry: dict[str, Any]) -> None:
        if self._journal is None:  # until the first case is measured, a fault leaves OUT unchanged
            remove_files(self._config.out, FILES)
            self._journal = Journal(self._config.out / JOURNAL, self._config, resume=False)
        self._journal.add(kind, entry)

    def _record(self) -> Record:
        rows: list[Row] = []
        utilisation = {}
        for entry in self._entries("case"):
            case_rows = [from_text(Row, row) for row in entry["rows"]]
            rows += case_rows
            for row in case_rows:
                if row.scheme in entry["utilisation"] and row.protocol != Protocol.ONLINE:
                    utilisation[ResultKey.of(row)] = np.array(
                        entry["utilisation"][row.scheme], np.float32
                    )
        points = {entry["network"]: entry["points"] for entry in self._entries("fairness")}
        networks = [
            NetworkRecord.from_json({**entry, "fairness": points.get(entry["network"], [])})
            for entry in self._entries("network")
        ]
        return Record(rows, networks, utilisation)

    def _publish(self, record: Record) -> None:
        assert self._journal is not None
        out = self._config.out
        record.save(out)
        machines = [self._journal.header["machine"], *self._journal.entries("machine")]
        write_files(
            out, {MANIFEST: partial(write_manifest, settings=self._config, machines=machines)}
        )
        self._journal.remove()  # the results are stored, whether or not plot and report succeed
        means, differences = list(mean_rows(record.rows)), list(difference_rows(record.rows))
        write_files(
            out,
            {
                **({SUMMARY: partial(write_csv, rows=means)} if means else {}),
                **({DIFFERENCES: partial(write_csv, rows=differences)} if differences else {}),
                PLOT: partial(plot_results, rows=record.rows),
                REPORT: partial(write_report, record=record),
            },
        )


def chosen_schemes(config: EvaluateConfig) -> tuple[str, ...]:
    """The schemes of a network; ``all`` stands for those that are installed and suit the objective.

    A scheme that turns out not to suit is left out with a message, as on any network.
    """
    if "all" not in config.scheme:
        return config.scheme or DEFAULT_SCHEMES
    return tuple(
        dict.fromkeys([*(name for name in config.scheme if name != "all"), *scheme_names()])
    )


class _Unavailable:
    """A scheme that could not be made for one of several networks."""

    def __init__(self, error: InputError) -> None:
        self.error = error

    def solve(self, problem: object) -> Any:
        """Raise the error."""
        raise self.error


def _case_entry(result: CaseResult) -> dict[str, Any]:
    utilisation = {
        name: [round(float(u), _UTILISATION_DECIMALS) for u in links]
        for name, links in result.utilisation.items()
    }
    return {
        "key": result.key,
        "rows": [vars(row) for row in result.rows],
        "utilisation": utilisation,
    }


@contextmanager
def _closing(results: Iterator[CaseResult]) -> Iterator[Iterator[CaseResult]]:
    """Close the iterator at the end, whatever happens, which ends the line of its progress bar."""
    try:
        yield results
    finally:
        results.close()  # type: ignore[attr-defined]


def evaluate_outcome(config: EvaluateConfig, notify: Notify) -> Outcome:
    """`teal evaluate`: the cases of the protocols, or a race."""
    if config.race:
        return race_outcome(config, notify)
    rows = EvaluationStudy(config, notify).run().rows
    return Outcome(
        tables=summary_tables(rows, wide=config.wide),
        wide=config.wide,
        written=(
            f"{config.out / REPORT}: open it in a browser; the rows are in {config.out}/results.csv"
        ),
        data=lambda: {"results": summaries_of(rows)},
        exit_code=EXIT_OK if any(row.usable for row in rows) else EXIT_FAILED,
    )
