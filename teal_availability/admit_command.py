"""The command `teal admit`: admission control of bandwidth guarantees, from settings to a table of
answers and a file.
"""

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
    select_guarantees,
)
from teal_availability.protection_options import (
    Request,
    candidate_paths_for,
    option_texts,
    resolve_requests,
)
from teal_availability.records import share_text
from teal_availability.settings import AdmitConfig, AdmitOptions
from teal_availability.study import failing_components
from teal_availability.survival import survival_probabilities

# Rows of the table in the terminal.
_MAX_TABLE_ROWS = 30


@dataclasses.dataclass(frozen=True)
class AdmissionRow:
    """Answer to one request for a bandwidth guarantee.

    Attributes:
        source, target: names of the nodes.
        rate: Gbit/s.
        availability: requested availability.
        value: value of granting the request.
        status: accepted, refused, sold, or impossible.
        price: smallest cost of a protection option at the dual link prices; infinite without an
            option.
        way: protection option as text: m of n, and the nodes of each reserved path; "" if the
            request is not granted.
        reserved: Gbit/s on each reserved path; NaN if the request is not granted.
        kept: availability of the option; NaN if the request is not granted.
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
    """Answers to all requests, with the total value and its upper bound.

    Attributes:
        rows: a row for each request, in the order of the table.
        value: sum of the values of the granted requests.
        bound: upper bound on the value of any selection that keeps the sold requests.
    """

    rows: list[AdmissionRow]
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """Relative gap (bound - value) / bound of the granted value; 0 where both are 0."""
        return gap_between(self.value, self.bound, 1.0)

    @property
    def answer(self) -> str:
        """Sentence with the number of requests by status, the total value and its upper bound."""
        num_by_status = Counter(row.status for row in self.rows)
        return (
            f"{num_by_status[ACCEPTED]} promises are accepted, {num_by_status[REFUSED]} refused, "
            f"{num_by_status[IMPOSSIBLE]} impossible, {num_by_status[SOLD]} sold before are kept: "
            f"total value {self.value:.6g}; no selection of protection options on these paths has "
            f"a value above {rounding.at_most(self.bound)}"
        )

    def __repr__(self) -> str:
        """Return the answer and the table of requests, as text."""
        return f"{self.answer}\n{admission_table(self).markdown()}"

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each request."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.rows])


def admission_table(report: AdmissionReport) -> Table:
    """Return the table of requests for the terminal, by ascending ratio of price to value."""

    def price(row: AdmissionRow) -> str:
        """Format the price of a request; ``-`` without a protection option."""
        return "-" if math.isinf(row.price) else f"{row.price:.4g}"

    columns = (
        Column("promise", lambda row: f"{row.source} -> {row.target}"),
        Column("Gbit/s", "rate", digits(4)),
        Column("availability", "availability", _time_text),
        Column("value", "value", digits(4)),
        Column("answer", "status"),
        Column("price", "price", text=price),
        Column("kept", "kept", _time_text),
        Column("paths", lambda row: row.way.partition(":")[0]),
    )
    # The requests that are the cheapest for their value come first.
    ranked = sorted(report.rows, key=lambda row: row.price / row.value)
    title = (
        f"promises by price over value; gap {rounding.gap_text(report.gap)}; --out has the paths"
    )
    return Table(title, columns, ranked, _MAX_TABLE_ROWS)


def _time_text(share: float) -> str:
    """Format a share of the time as a percentage, rounded down; ``-`` for NaN."""
    return "-" if math.isnan(share) else share_text(share, up=False)


def admission_of(
    topology: Topology, requests: Sequence[Request], options: AdmitOptions
) -> AdmissionReport:
    """Select the guarantees that a network can grant.

    Args:
        topology: the network.
        requests: the requests.
        options: the failing components, and the candidate paths.

    Raises:
        InputError: invalid options, or sold requests that cannot all be kept.
    """
    components = failing_components(topology, options)
    problem = candidate_paths_for(topology, requests, options.num_paths, components.groups)
    survival_states = survival_probabilities(problem, components)
    admission = select_guarantees(
        problem, survival_states, requests, seconds(options.deadline, "--deadline")
    )
    return AdmissionReport(
        _admission_rows(problem, requests, admission),
        admission.value,
        admission.bound,
    )


def _admission_rows(
    problem: Problem, requests: Sequence[Request], admission: Admission
) -> list[AdmissionRow]:
    """Return a result row for each request, in their order.

    Args:
        problem: the network with the candidate paths of the requests.
        requests: the requests.
        admission: the selected protection options and prices.
    """
    texts = option_texts(problem, requests, admission.option)
    return [
        AdmissionRow(
            request.source,
            request.target,
            request.rate,
            request.availability,
            request.value,
            admission.status[index],
            float(admission.price[index]),
            texts[index],
            math.nan if option is None else request.rate / option.min_surviving,
            math.nan if option is None else option.availability,
        )
        for index, (request, option) in enumerate(zip(requests, admission.option, strict=True))
    ]


def run_admit(config: AdmitConfig, notify: Notify) -> AdmissionReport:
    """Select the requested promises (bandwidth guarantees) to accept, and write the answers.

    Args:
        config: the settings.
        notify: called with progress messages.

    Raises:
        InputError: invalid settings, or an existing file without ``overwrite``.
    """
    if config.out is not None:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    topology = topology_from(config.topology, config)
    notify(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} directed links")
    report = admission_of(topology, resolve_requests(config.promises, topology), config)
    if config.out is not None:
        write_csv(config.out, rows=report.rows)
    return report


def admit_outcome(config: AdmitConfig, notify: Notify) -> Outcome:
    """Run `teal admit`.

    Args:
        config: the settings.
        notify: called with progress messages.

    Returns:
        table and JSON data; the exit code is a failure if no request is granted.
    """
    report = run_admit(config, notify)
    any_granted = any(row.way for row in report.rows)
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
        exit_code=EXIT_OK if any_granted else EXIT_FAILED,
    )


@with_options(AdmitOptions)
def admit(topology: Any, promises: Any, options: AdmitOptions) -> AdmissionReport:
    """Select the bandwidth guarantees that a network can grant.

    Options are the same as in ``teal admit``; no file is written.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        promises: a file, or several :class:`teal_availability.Request`.
        options: keyword options of the command.

    Raises:
        InputError: invalid input, or sold requests that cannot all be kept.
    """
    network = topology_from(topology, options)
    return admission_of(network, resolve_requests(promises, network), options)
