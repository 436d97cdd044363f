"""`teal admit`: from settings to a table of promises and a file."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from teal import Problem, Topology
from teal.app.command import EXIT_FAILED, EXIT_OK, Notify, Outcome
from teal.app.options import with_options
from teal.app.settings import seconds
from teal.app.table import Column, Table
from teal.app.text import digits
from teal.formats import topology_from
from teal.formats.rows import write_csv
from teal.problem.bounds import gap_between
from teal.runtime import rounding
from teal.runtime.storage import check_out_file
from teal_availability.admission import (
    ACCEPTED,
    IMPOSSIBLE,
    REFUSED,
    SOLD,
    Admission,
    choose_promises,
)
from teal_availability.patterns import pattern_probabilities
from teal_availability.records import share_text
from teal_availability.settings import AdmitConfig, AdmitOptions
from teal_availability.study import failing_components
from teal_availability.ways import Request, paths_for, requests_of, way_texts

_SHOWN = 30  # promises in the terminal


@dataclasses.dataclass(frozen=True)
class AdmissionRow:
    """The answer to a promise.

    Attributes:
        source, target: nodes.
        rate: Gbit/s.
        availability: share of the time that is asked for.
        value: worth of keeping it.
        status: accepted, refused, sold, or impossible.
        price: cost of its cheapest way at the link prices; infinite without one.
        way: paths that rates are reserved on, node by node, and how many of them must survive.
        reserved: Gbit/s on each of these paths.
        kept: share of the time for which it is kept.
    """

    source: str
    target: str
    rate: float
    availability: float
    value: float
    status: str
    price: float
    way: str
    reserved: float
    kept: float


@dataclasses.dataclass(frozen=True, eq=False)
class AdmissionReport:
    """The promises that a network keeps.

    Attributes:
        rows: a row for each promise, in the order of the table.
        value: sum of the values of those that are kept.
        bound: no others that keep the sold ones have a larger value.
    """

    rows: list[AdmissionRow]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """(bound - value) / bound; 0 where both are 0."""
        return gap_between(self.value, self.bound, 1.0)

    @property
    def answer(self) -> str:
        """How many promises are kept, in a sentence."""
        count = Counter(row.status for row in self.rows)
        return (
            f"{count[ACCEPTED]} promises are accepted, {count[REFUSED]} refused, "
            f"{count[IMPOSSIBLE]} impossible, {count[SOLD]} sold before are kept: worth "
            f"{self.value:.6g}; in such ways over these paths no choice is worth more than "
            f"{rounding.at_most(self.bound)}"
        )

    def __repr__(self) -> str:
        """The answer and the table."""
        return f"{self.answer}\n{admission_table(self).markdown()}"

    def to_frame(self) -> Any:
        """A pandas frame, a row for each promise."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.rows])


def admission_table(report: AdmissionReport) -> Table:
    """The promises, those of the lowest price for their value first."""

    def price(row: AdmissionRow) -> str:
        return "-" if math.isinf(row.price) else f"{row.price:.4g}"

    columns = (
        Column("promise", lambda row: f"{row.source} -> {row.target}"),
        Column("Gbit/s", "rate", digits(4)),
        Column("availability", "availability", _time),
        Column("value", "value", digits(4)),
        Column("answer", "status"),
        Column("price", "price", text=price),
        Column("kept", "kept", _time),
        Column("paths", lambda row: row.way.partition(":")[0]),
    )
    ranked = sorted(report.rows, key=lambda row: row.price / row.value)
    title = (
        f"promises by price over value; gap {rounding.gap_text(report.gap)}; --out has the paths"
    )
    return Table(title, columns, ranked, _SHOWN)


def _time(share: float) -> str:
    return "-" if math.isnan(share) else share_text(share, up=False)


def admission_of(
    topology: Topology, requests: Sequence[Request], options: AdmitOptions
) -> AdmissionReport:
    """Choose the promises that a network keeps.

    Args:
        topology: the network.
        requests: the promises.
        options: what fails, and the candidate paths.

    Raises:
        InputError: a fault in the options, or sold promises that cannot be kept.
    """
    components = failing_components(topology, options)
    problem = paths_for(topology, requests, options.num_paths, components.groups)
    patterns = pattern_probabilities(problem, components)
    found = choose_promises(problem, patterns, requests, seconds(options.deadline, "--deadline"))
    return AdmissionReport(
        _rows(problem, requests, found),
        found.value,
        found.bound,
    )


def _rows(problem: Problem, requests: Sequence[Request], found: Admission) -> list[AdmissionRow]:
    texts = way_texts(problem, requests, found.way)
    return [
        AdmissionRow(
            request.source,
            request.target,
            request.rate,
            request.availability,
            request.value,
            found.status[number],
            float(found.price[number]),
            texts[number],
            math.nan if way is None else request.rate / way.needed,
            math.nan if way is None else way.availability,
        )
        for number, (request, way) in enumerate(zip(requests, found.way, strict=True))
    ]


def run_admit(config: AdmitConfig, notify: Notify) -> AdmissionReport:
    """Choose the promises, and write the answers.

    Raises:
        InputError: a fault in the settings, or a file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    topology = topology_from(config.topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    report = admission_of(topology, requests_of(config.promises, topology), config)
    if config.out is not None:
        write_csv(config.out, rows=report.rows)
    return report


def admit_outcome(config: AdmitConfig, notify: Notify) -> Outcome:
    """`teal admit`."""
    report = run_admit(config, notify)
    kept = any(row.way for row in report.rows)
    return Outcome(
        text=report.answer,
        tables=[admission_table(report)],
        written=str(config.out or ""),
        data={
            "answer": report.answer,
            "value": report.value,
            "bound": report.bound,
            "gap": report.gap,
            "promises": [dataclasses.asdict(row) for row in report.rows],
        },
        exit_code=EXIT_OK if kept else EXIT_FAILED,
    )


@with_options(AdmitOptions)
def admit(topology: Any, promises: Any, options: AdmitOptions) -> AdmissionReport:
    """Choose the promises that a network keeps; the options are those of ``teal admit``.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        promises: a file, or several :class:`teal_availability.Request`.
        options: by name.

    Raises:
        InputError: a fault in the input, or sold promises that cannot be kept.
    """
    network = topology_from(topology, options)
    return admission_of(network, requests_of(promises, network), options)
