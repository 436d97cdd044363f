"""Study of schemes on networks: evaluates the cases that a journal lacks, and records every case in
it.
"""

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
from teal.formats.rows import from_text
from teal.network.traffic import spread
from teal.runtime.arrays import Int64Array
from teal.runtime.storage import content_key
from teal.schemes import Scheme, make_scheme, scheme_names
from teal.schemes.models import model_of_each
from teal_study.evaluation.cases import Cases, Protocol, parse_levels, selection_text
from teal_study.evaluation.evaluate import Evaluation
from teal_study.evaluation.fairness_curve import fairness_curve
from teal_study.evaluation.record import NetworkRecord, Record, ResultKey
from teal_study.evaluation.rows import CaseResult, Row
from teal_study.evaluation.settings import DEFAULT_SCHEMES, EvaluateOptions

# Interval between matrices if the traffic does not say its own, seconds.
_DEFAULT_INTERVAL_S = 300
# Decimals of a utilisation in the journal.
_UTILISATION_DECIMALS = 4


class Study:
    """Cases of networks, and the results of schemes on them so far.

    Args:
        options: schemes, matrices and changes.
        entries: journal, or list in memory, of the results of an earlier run; new ones are added.
        notify: called with the progress and with failures.

    Raises:
        InputError: invalid levels of a change.
    """

    def __init__(
        self,
        options: EvaluateOptions,
        entries: Entries,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Parse the levels of each protocol from the options."""
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
        """Return the instance with a path for every demand that the network connects in some case,
        and the cases.

        Args:
            instance: network, traffic, candidate paths and program.

        Raises:
            InputError: changes that the network or its traffic does not allow.
        """
        # Called for its InputError: invalid settings of the online protocol.
        self._interval_s(instance)
        cases = self._cases(instance)
        # Links that are down in each case: without failures, then with those of each case.
        failed_links = np.flatnonzero(cases.topology.capacity == 0).tolist()
        failed_link_sets = [failed_links, *([*failed_links, *links] for links in cases.failures())]
        return instance.surviving(failed_link_sets, self._notify), cases

    def content(self, instance: Instance) -> str:
        """Return the content hash of network, traffic, paths, objective, failed links and seed.

        Rows of two runs can be compared if their hashes are equal.
        """
        return content_key(
            instance.topology.content_key(),
            instance.traffic.content_key(),
            instance.paths.key,
            instance.objective,
            self._options.fail,
            self._options.seed,
            *instance.value_arrays,
        )

    def measure(
        self,
        network_index: int,
        instance: Instance,
        cases: Cases,
        schemes: Mapping[str, Scheme],
        *,
        strict: bool,
    ) -> None:
        """Evaluate the cases of a network that have no entry in the journal, and add their entries.

        Args:
            network_index: index of the network in the study.
            instance: network, traffic and paths that survive the failures, from :meth:`prepared`.
            cases: cases of the network.
            schemes: schemes by name in the rows.
            strict: whether to raise the InputError if every scheme fails with one on its first
                case.

        Raises:
            InputError: with ``strict``, if no scheme suits the network.
        """
        # State of an interrupted run: rows by key of the case, reasons for excluded schemes, and
        # whether the network is in the journal.
        finished_rows = {
            entry["key"]: [from_text(Row, row) for row in entry["rows"]]
            for entry in self._network_entries("case", network_index)
        }
        exclusion_reasons = {
            entry["scheme"]: entry["reason"]
            for entry in self._network_entries("left_out", network_index)
        }
        is_described = any(self._network_entries("network", network_index))
        # Evaluate the cases, and record each result in the journal.
        evaluation = Evaluation(
            instance,
            dict(schemes),
            time_limit=seconds(self._options.time_limit, "--time-limit"),
            interval_s=self._interval_s(instance),
            is_proving=self._options.prove,
            strict=strict,
            notify=self._notify,
            already_excluded=dict(exclusion_reasons),
        )
        with _closing(evaluation.run(cases, finished_rows)) as results:
            for result in results:
                # Journal the network with its first result, and each scheme that was excluded.
                if not is_described:
                    network = NetworkRecord.of(
                        instance.topology,
                        instance.traffic.name,
                        self.content(instance),
                        self._selection(instance),
                    )
                    self._add("network", network_index, network.to_json())
                    is_described = True
                for scheme, reason in evaluation.excluded.items():
                    if scheme not in exclusion_reasons:
                        exclusion_reasons[scheme] = reason
                        self._add("left_out", network_index, {"scheme": scheme, "reason": reason})
                self._add("case", network_index, _case_entry(result))
        # Record the fairness curve, and that the network is complete.
        self._add("fairness", network_index, {"points": self._fairness(instance, cases)})
        self._add("complete", network_index, {})

    def record(self) -> Record:
        """Return the rows, networks and link utilisations of all entries so far."""
        # Rows, and utilisations (E,) by key of the row, except those of the online protocol.
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
        fairness_points = {
            entry["network"]: entry["points"] for entry in self._entries.entries("fairness")
        }
        networks = [
            NetworkRecord.from_json(
                {**entry, "fairness": fairness_points.get(entry["network"], [])}
            )
            for entry in self._entries.entries("network")
        ]
        return Record(rows, networks, utilisation)

    def _network_entries(self, kind: str, network_index: int) -> Iterator[dict[str, Any]]:
        """Yield the journal's entries of a kind, such as case, about the network of an index."""
        return (entry for entry in self._entries.entries(kind) if entry["network"] == network_index)

    def _add(self, kind: str, network_index: int, entry: Mapping[str, Any]) -> None:
        """Add an entry of a kind, such as case, about one network to the journal.

        Args:
            kind: kind of the entry.
            network_index: index of the network in the study.
            entry: its JSON values.
        """
        self._entries.add(kind, {"network": network_index, **entry})

    def _fairness(self, instance: Instance, cases: Cases) -> list[tuple[Any, ...]]:
        """Return the price of fairness on the first matrix, for a chart.

        Args:
            instance: network, traffic and program.
            cases: cases of the network; the first one has the matrix.

        Returns:
            fields of a FairnessPoint for each objective; [] if the objective is not a concave
            utility of shares, or if a solve fails.
        """
        if instance.objective.rules.alpha is None:
            return []
        self._notify("computing the price of fairness on the first matrix, for a chart")
        first_case = next(iter(cases))
        try:
            curve = fairness_curve(
                instance.problem(first_case.demand, capacity=first_case.capacity)
            )
        # The results of the run do not depend on its chart.
        except Exception as error:
            self._notify(f"no chart of the price of fairness: {error}")
            return []
        return [dataclasses.astuple(point) for point in curve]

    def _interval_s(self, instance: Instance) -> float:
        """Return the seconds of an interval of the online protocol; 0 without it.

        Raises:
            InputError: an objective that carries all demand.
        """
        options = self._options
        default_interval_s = instance.traffic.interval_s or _DEFAULT_INTERVAL_S
        if not options.online:
            return 0.0
        if instance.objective.rules.carries_all:
            raise InputError(
                "--online", "objective", "an objective that maximises flow", instance.objective.name
            )
        return (
            seconds(options.interval, "--interval")
            if options.interval
            else float(default_interval_s)
        )

    def _matrix_indices(self, instance: Instance) -> Int64Array:
        """Return the indices of the matrices to evaluate: with --online the first ones of the
        split, otherwise evenly spread over it.
        """
        split_rows = rows_of(instance, self._options.split)
        return (
            split_rows[: self._options.limit or None]
            if self._options.online
            else spread(split_rows, self._options.limit)
        )

    def _selection(self, instance: Instance) -> str:
        """Return the description of the evaluated matrices, such as ``10 of 50 matrices: the test
        split, evenly spread``.
        """
        return selection_text(
            len(self._matrix_indices(instance)),
            instance,
            self._options,
            is_consecutive=self._options.online,
        )

    def _cases(self, instance: Instance) -> Cases:
        """Return the cases of a network, in which the links of --fail have failed."""
        options = self._options
        topology = instance.topology
        if options.fail:
            failed_links = topology.links_named(options.fail, "--fail")
            self._notify(
                "failed links: " + ", ".join(topology.link_name(link) for link in failed_links)
            )
            topology = topology.with_failed_links(failed_links)
        return Cases(
            topology,
            instance.traffic,
            self._matrix_indices(instance),
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
    """Evaluate schemes on one network, and return all results.

    Args:
        instance: network, traffic, candidate paths and program.
        options: schemes, matrices and changes; only the first model is used.
        entries: results of an earlier run; new ones are added.
        notify: called with the progress.

    Raises:
        InputError: a scheme or a change that does not suit the network.
    """
    (schemes,) = schemes_of(options, options.models[:1], notify)
    study = Study(options, entries, notify)
    study.measure(0, *study.prepared(instance), schemes, strict=True)
    return study.record()


def chosen_schemes(options: EvaluateOptions) -> tuple[str, ...]:
    """Return the specifications of the schemes in the settings; ``all`` stands for every installed
    scheme.

    A scheme of ``all`` that does not suit the objective fails later, and is excluded then.
    """
    if "all" not in options.scheme:
        return options.scheme or DEFAULT_SCHEMES
    return tuple(
        dict.fromkeys([*(name for name in options.scheme if name != "all"), *scheme_names()])
    )


def schemes_of(
    options: EvaluateOptions, models: Sequence[Path | None], notify: Callable[[str], None]
) -> list[dict[str, Scheme]]:
    """Return the schemes of each network, by specification.

    A scheme that cannot be made for some networks, such as for lack of a model, fails its rows
    there.

    Args:
        options: the schemes.
        models: model of each network; None for none.
        notify: called with the model of each scheme.

    Raises:
        InputError: a scheme that can be made for no network.
    """
    schemes_by_network: list[dict[str, Scheme]] = []
    for model in models:
        schemes_by_network.append({})
        for name, model_of_scheme in model_of_each(chosen_schemes(options), model, notify).items():
            try:
                schemes_by_network[-1][name] = make_scheme(name, model_of_scheme)
            except InputError as error:
                schemes_by_network[-1][name] = _Unavailable(error)
    # A scheme that is available for no network is an error.
    for name in {name for schemes in schemes_by_network for name in schemes}:
        scheme_instances = [schemes[name] for schemes in schemes_by_network if name in schemes]
        if all(isinstance(scheme, _Unavailable) for scheme in scheme_instances):
            raise scheme_instances[0].error  # type: ignore[attr-defined]
    return schemes_by_network


class _Unavailable:
    """Scheme that could not be made for one of several networks; its solve raises the error.

    Args:
        error: the error that making the scheme raised.
    """

    def __init__(self, error: InputError) -> None:
        self.error = error

    def solve(self, problem: object) -> Any:
        """Raise the error that making the scheme raised."""
        raise self.error


def _case_entry(result: CaseResult) -> dict[str, Any]:
    """Return the journal entry of a case: rows, and rounded utilisations by scheme."""
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
    """Yield an iterator of results, and close it at the end, also after an exception, so that its
    progress bar ends.
    """
    try:
        yield results
    finally:
        results.close()  # type: ignore[attr-defined]
