"""Schemes on networks: what is missing of all cases is measured, and every case is an entry."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.instance import Instance, rows_of
from teal.app.run_files import Entries
from teal.app.settings import seconds
from teal.errors import InputError
from teal.evaluation.cases import Cases, Protocol, parse_levels, selection_text
from teal.evaluation.evaluate import Evaluation
from teal.evaluation.fairness_curve import fairness_curve
from teal.evaluation.record import NetworkRecord, Record, ResultKey
from teal.evaluation.rows import CaseResult, Row
from teal.evaluation.settings import DEFAULT_SCHEMES, EvaluateOptions
from teal.formats.rows import from_text
from teal.network.traffic import spread
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import content_key
from teal.schemes import Scheme, make_scheme, scheme_names
from teal.schemes.models import model_of_each

# Seconds from one matrix to the next, for traffic of unknown interval.
_DEFAULT_INTERVAL_S = 300
# Decimals of a utilisation in the journal.
_UTILISATION_DECIMALS = 4


class Study:
    """The cases of networks, and what schemes reached on them so far.

    Args:
        options: schemes, matrices and changes.
        entries: what an earlier run has measured; receives what is measured.
        notify: called with what was found, and with failures.

    Raises:
        InputError: levels of a change that cannot be read.
    """

    def __init__(
        self,
        options: EvaluateOptions,
        entries: Entries,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._entries = entries
        self._notify = notify
        self._levels = {
            Protocol.FAILURES: parse_levels("--failures", options.failures, counted=True),
            Protocol.NOISE: parse_levels("--noise", options.noise),
            Protocol.SPATIAL: parse_levels("--spatial", options.spatial, shares=True),
            Protocol.SCALE: parse_levels("--scale", options.scale),
            Protocol.CHURN: parse_levels("--churn", options.churn, shares=True),
        }

    def prepared(self, instance: Instance) -> tuple[Instance, Cases]:
        """The cases of a network, and the instance with a path for every demand that the network
        connects in one of them.

        Raises:
            InputError: changes that the network or its traffic does not allow.
        """
        self._interval_s(instance)  # checks the setting
        cases = self._cases(instance)
        down = np.flatnonzero(cases.topology.capacity == 0).tolist()
        failures = [down, *([*down, *links] for links in cases.failures())]
        return instance.surviving(failures, self._notify), cases

    def content(self, instance: Instance) -> str:
        """Content key that rows of two runs must share to be compared."""
        return content_key(
            instance.topology.content_key(),
            instance.traffic.content_key(),
            instance.paths.key,
            instance.objective,
            self._options.fail,
            self._options.seed,
            *instance.worth,
        )

    def measure(
        self,
        number: int,
        instance: Instance,
        cases: Cases,
        schemes: Mapping[str, Scheme],
        *,
        strict: bool,
    ) -> None:
        """Measure what is missing of a network.

        Args:
            number: place of the network among those of the study.
            instance: as :meth:`prepared` returned it.
            cases: its cases.
            schemes: by the name that rows give them.
            strict: whether a scheme that does not suit the network is an error.

        Raises:
            InputError: a scheme that does not suit, where that is an error.
        """
        # Restore the state of an interrupted run.
        finished = {
            entry["key"]: [from_text(Row, row) for row in entry["rows"]]
            for entry in self._of_network("case", number)
        }
        excluded = {
            entry["scheme"]: entry["reason"] for entry in self._of_network("left_out", number)
        }
        is_described = any(self._of_network("network", number))
        # Evaluate the cases, and record each result in the journal.
        evaluation = Evaluation(
            instance,
            dict(schemes),
            time_limit=seconds(self._options.time_limit, "--time-limit"),
            interval_s=self._interval_s(instance),
            is_proving=self._options.prove,
            strict=strict,
            notify=self._notify,
            already_excluded=dict(excluded),
        )
        with _closing(evaluation.run(cases, finished)) as results:
            for result in results:
                if not is_described:
                    network = NetworkRecord.of(
                        instance.topology,
                        instance.traffic.name,
                        self.content(instance),
                        self._selection(instance),
                    )
                    self._add("network", number, network.to_json())
                    is_described = True
                for scheme, reason in evaluation.excluded.items():
                    if scheme not in excluded:
                        excluded[scheme] = reason
                        self._add("left_out", number, {"scheme": scheme, "reason": reason})
                self._add("case", number, _case_entry(result))
        # Record the fairness curve, and that the network is complete.
        self._add("fairness", number, {"points": self._fairness(instance, cases)})
        self._add("complete", number, {})

    def record(self) -> Record:
        """All results so far."""
        rows: list[Row] = []
        utilisation = {}
        for entry in self._entries.entries("case"):
            case_rows = [from_text(Row, row) for row in entry["rows"]]
            rows += case_rows
            for row in case_rows:
                if row.scheme in entry["utilisation"] and row.protocol != Protocol.ONLINE:
                    utilisation[ResultKey.of(row)] = np.array(
                        entry["utilisation"][row.scheme], np.float32
                    )
        points = {entry["network"]: entry["points"] for entry in self._entries.entries("fairness")}
        networks = [
            NetworkRecord.from_json({**entry, "fairness": points.get(entry["network"], [])})
            for entry in self._entries.entries("network")
        ]
        return Record(rows, networks, utilisation)

    def _of_network(self, kind: str, number: int) -> Iterator[dict[str, Any]]:
        return (entry for entry in self._entries.entries(kind) if entry["network"] == number)

    def _add(self, kind: str, number: int, entry: Mapping[str, Any]) -> None:
        self._entries.add(kind, {"network": number, **entry})

    def _fairness(self, instance: Instance, cases: Cases) -> list[tuple[Any, ...]]:
        """The price of fairness on the first matrix, under a concave utility of shares; [] where it
        fails.
        """
        if instance.objective.rules.alpha is None:
            return []
        self._notify("what fairness costs: alpha-fair shares of the first matrix, for the chart")
        first = next(iter(cases))
        try:
            curve = fairness_curve(instance.problem(first.demand, capacity=first.capacity))
        except Exception as error:  # the results of the run do not depend on its chart
            self._notify(f"no chart of what fairness costs: {error}")
            return []
        return [dataclasses.astuple(point) for point in curve]

    def _interval_s(self, instance: Instance) -> float:
        """Seconds of an interval of the online protocol; 0 without it."""
        options = self._options
        usual = instance.traffic.interval_s or _DEFAULT_INTERVAL_S
        if not options.online:
            return 0.0
        if instance.objective.rules.carries_all:
            raise InputError(
                "--online", "objective", "one that maximises flow", instance.objective.name
            )
        return seconds(options.interval, "--interval") if options.interval else float(usual)

    def _rows(self, instance: Instance) -> Int64Array:
        """The matrices that are evaluated."""
        rows = rows_of(instance, self._options.split)
        return (
            rows[: self._options.limit or None]
            if self._options.online
            else spread(rows, self._options.limit)
        )

    def _selection(self, instance: Instance) -> str:
        return selection_text(
            len(self._rows(instance)),
            instance,
            self._options,
            is_consecutive=self._options.online,
        )

    def _cases(self, instance: Instance) -> Cases:
        options = self._options
        topology = instance.topology
        if options.fail:
            failed = topology.links_named(options.fail, "--fail")
            self._notify("failed: " + ", ".join(topology.link_name(link) for link in failed))
            topology = topology.with_failed_links(failed)
        return Cases(
            topology,
            instance.traffic,
            self._rows(instance),
            self._levels,
            options.draws,
            options.seed,
        )


def evaluate(
    instance: Instance,
    options: EvaluateOptions,
    entries: Entries,
    notify: Callable[[str], None] = lambda _: None,
) -> Record:
    """Measure schemes on one network.

    Args:
        instance: network, traffic, candidate paths and program.
        options: schemes, matrices and changes; the first model is taken.
        entries: what an earlier run has measured of it; receives what is measured.
        notify: called with what was found.

    Raises:
        InputError: a scheme or a change that does not suit.
    """
    (schemes,) = schemes_of(options, options.models[:1], notify)
    study = Study(options, entries, notify)
    study.measure(0, *study.prepared(instance), schemes, strict=True)
    return study.record()


def chosen_schemes(options: EvaluateOptions) -> tuple[str, ...]:
    """The schemes of a network; ``all`` stands for those that are installed and suit the objective.

    A scheme that turns out not to suit is left out with a message, as on any network.
    """
    if "all" not in options.scheme:
        return options.scheme or DEFAULT_SCHEMES
    return tuple(
        dict.fromkeys([*(name for name in options.scheme if name != "all"), *scheme_names()])
    )


def schemes_of(
    options: EvaluateOptions, models: Sequence[Path | None], notify: Callable[[str], None]
) -> list[dict[str, Scheme]]:
    """The schemes of each network.  One that lacks a model for some networks fails its rows there.

    Args:
        options: the schemes.
        models: the model of each network; None for none.
        notify: called with which model is taken.

    Raises:
        InputError: a scheme that can be made for no network.
    """
    by_network: list[dict[str, Scheme]] = []
    for model in models:
        by_network.append({})
        for name, model_of_scheme in model_of_each(chosen_schemes(options), model, notify).items():
            try:
                by_network[-1][name] = make_scheme(name, model_of_scheme)
            except InputError as error:
                by_network[-1][name] = _Unavailable(error)
    for name in {name for schemes in by_network for name in schemes}:
        instances = [schemes[name] for schemes in by_network if name in schemes]
        if all(isinstance(scheme, _Unavailable) for scheme in instances):
            raise instances[0].error  # type: ignore[attr-defined]
    return by_network


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
