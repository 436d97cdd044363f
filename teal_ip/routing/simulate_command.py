"""``teal simulate``: run from settings; write text, tables, a page with a map, and files.

Entry points: :func:`run_simulate`, :class:`SimulationReport` (the Python API's result).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.command import Notify, Outcome
from teal.app.page import Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.app.web.layout import drawing_of, utilisation_map
from teal.formats.rows import write_csv
from teal.network import Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import check_out_file, check_out_folder
from teal_ip.readings.files import save_counters
from teal_ip.routing.growth import forecast_table, is_full_by, month_phrase
from teal_ip.routing.igp import load_routed
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate import (
    CapacityForecast,
    FailureLoad,
    Simulation,
    installed_routing,
    simulate,
    synthetic_counters,
)


def describe(simulation: Simulation) -> str:
    """Return a summary of a few lines: demand, utilisation and latency of the worst matrix without
    failure, and the forecast.
    """
    worst = simulation.worst_matrix
    num_matrices = len(simulation.matrices)
    matrix_label = (
        f"worst of {num_matrices:,} matrices: index {worst.index}, {worst.timestamp}"
        if num_matrices > 1
        else f"matrix {worst.index}"
    )
    lost_text = f", {worst.lost:.6g} Gbit/s without a usable path" if worst.lost else ""
    without_path = simulation.without_path
    return "\n".join(
        [
            f"{matrix_label}: {worst.demand:.6g} Gbit/s of demand{lost_text}",
            *([without_path.sentence()] if without_path is not None and without_path.pairs else []),
            f"largest link utilisation {100 * worst.utilisation:.2f}% on "
            f"{worst.busiest or 'no link'}, "
            f"{worst.overload:.6g} Gbit/s of load above capacity over all links",
            f"latency: mean {worst.latency_mean:.4g} ms, 99th percentile over the volume "
            f"{worst.latency_99:.4g} ms, largest {worst.latency_worst:.4g} ms",
            *([] if simulation.forecast is None else [forecast_sentence(simulation.forecast)]),
        ]
    )


def forecast_sentence(forecast: CapacityForecast) -> str:
    """Return a sentence about the links whose load exceeds the utilisation limit by the horizon."""
    # Links that are full by the horizon, under failure and without, the first month first.
    full_links = forecast.full
    full_without_failure = [link for link in full_links if is_full_by(link.full, forecast.horizon)]
    by_horizon = f" by {forecast.horizon}" if forecast.horizon else ""
    if not full_links:
        return (
            f"With {forecast.growth}, no link exceeds {percent(forecast.limit)}{by_horizon} under "
            "the current routing"
        )
    first_link = full_links[0]
    num_links = len(full_links)
    failure_text = (
        f"when {first_link.worst_failure} fails" if first_link.worst_failure else "without failure"
    )
    return (
        f"With {forecast.growth}, {num_links:,} link{'' if num_links == 1 else 's'} "
        f"exceed{'s' if num_links == 1 else ''} "
        f"{percent(forecast.limit)}{by_horizon} under the current routing, "
        f"{len(full_without_failure):,} of them without failure; first "
        f"{first_link.link} {month_phrase(first_link.full_under_failure)}, {failure_text}"
    )


def link_table(simulation: Simulation, max_rows: int) -> Table:
    """Return the table of link utilisations without failure, the most utilised link first.

    Args:
        simulation: simulated loads.
        max_rows: number of links shown in a terminal; 0 for all.
    """
    # Maximum and mean utilisation of links with capacity; rows are their positions, by utilisation.
    topology = simulation.topology
    names = topology.link_names()
    capacity = topology.capacity
    live_links = np.flatnonzero(topology.capacity > 0)
    largest_utilisation, mean_utilisation = (
        load[live_links] / capacity[live_links]
        for load in (simulation.largest_load, simulation.mean_load)
    )
    order = np.argsort(-largest_utilisation, kind="stable")
    columns = (
        Column("link", lambda row: names[live_links[row]]),
        Column(
            "largest utilisation",
            lambda row: float(largest_utilisation[row]),
            percent,
            most_is_best=True,
        ),
        Column("mean", lambda row: float(mean_utilisation[row]), percent, most_is_best=True),
        Column(
            "capacity, Gbit/s",
            lambda row: float(capacity[live_links[row]]),
            digits(6),
            most_is_best=True,
        ),
    )
    return Table("most utilised links without failure", columns, order.tolist(), max_rows)


def failure_table(simulation: Simulation, shown: int | None = None) -> Table:
    """Return the table of loads: the worst matrix without failure, then failures, the worst first.

    Args:
        simulation: simulated loads.
        shown: number of rows shown in a terminal; None for all.
    """
    columns = (
        Column(
            "failure", lambda row: row.failure if isinstance(row, FailureLoad) else "no failure"
        ),
        Column("largest utilisation", "utilisation", percent, most_is_best=True),
        Column("on", "busiest"),
        Column("above capacity, Gbit/s", "overload", digits(4), most_is_best=True),
        Column("lost, Gbit/s", "lost", digits(4), most_is_best=True),
        _failure_column("demand from and to failed nodes, Gbit/s", _failed_node_demand, digits(4)),
        _failure_column("during repair", lambda row: row.repair_utilisation, percent),
        _failure_column("at risk of micro-loops, Gbit/s", lambda row: row.at_risk, digits(4)),
    )
    records = [simulation.worst_matrix, *simulation.failures]
    return Table(f"worst failures of {len(simulation.failures):,}", columns, records, shown)


def _failed_node_demand(failure_load: FailureLoad) -> float:
    """Return the demand from and to a failed node, Gbit/s; NaN for failures of links."""
    return failure_load.own if failure_load.kind == "node" else math.nan


def _failure_column(
    label: str, value_of: Callable[[FailureLoad], float], format_value: Callable[[float], str]
) -> Column:
    """Return a column of the failure table that only failures have a value for.

    It is empty in the row without failure, and hidden if no failure has a value.

    Args:
        label: heading of the column.
        value_of: function that returns the value of a failure; NaN for none.
        format_value: function that returns the text of a value.
    """
    return Column(
        label,
        lambda row: value_of(row) if isinstance(row, FailureLoad) else math.nan,
        format_value,
        most_is_best=True,
        optional=True,
    )


def _full_link_table(forecast: CapacityForecast, shown: int) -> Table:
    """Return the table of links that become full by the horizon; ``shown`` rows in a terminal."""
    by_horizon = f" by {forecast.horizon}" if forecast.horizon else ""
    title = f"links that exceed {percent(forecast.limit)}{by_horizon} under the current routing"
    return forecast_table(
        forecast.full, title, routing="as installed", fitted=forecast.growth.fitted, shown=shown
    )


def tables(simulation: Simulation, worst: int) -> Iterator[Table]:
    """Yield the tables of the most utilised links, of links that become full, and of failures.

    Args:
        simulation: simulated loads.
        worst: number of links and of failures that a terminal shows.
    """
    yield link_table(simulation, worst)
    if simulation.forecast is not None and simulation.forecast.full:
        yield _full_link_table(simulation.forecast, worst)
    if simulation.failures:
        yield failure_table(simulation, worst + 1)


# Relative tolerance of the capacity, for rounding errors of loads.
_ROUNDING = 1e-9


def write_simulation_page(path: Path, simulation: Simulation) -> None:
    """Write an HTML page with a map of link utilisations, and tables of failures and links.

    Args:
        path: path of the page.
        simulation: simulated loads.
    """
    # Cases of the map: without failure, and one for each failure with stored loads.
    topology = simulation.topology
    load_by_case = {"no failure, maximum over all matrices": simulation.largest_load}
    load_by_case |= {f"{name} down": load for name, load in simulation.failure_loads.items()}
    is_live = topology.capacity > 0

    def utilisation(load: FloatArray) -> FloatArray:
        """Return the utilisation (E,) of links from their loads (E,); NaN without capacity."""
        return np.where(is_live, load / np.where(is_live, topology.capacity, 1), np.nan)

    map_cases = {name: {"as installed": utilisation(load)} for name, load in load_by_case.items()}
    # The first case, without failure, also shows the loads of the IGP alone.
    if simulation.plain_load is not None:
        next(iter(map_cases.values()))["shortest paths alone"] = utilisation(simulation.plain_load)
    # Section with the map and the table of failures.
    section = Section(
        title=topology.name,
        facts=(
            f"{topology.num_nodes} nodes, {topology.num_links} directed links, "
            f"{len(simulation.matrices):,} matrices"
        ),
        traffic="shortest paths",
        table=failure_table(simulation),
        map=utilisation_map(drawing_of(topology), map_cases)
        | _failure_case_by_link(topology, list(load_by_case.values())),
        map_first=True,
        case_label="Failure",
        scheme_label="Routing",
    )
    # Introduction, and section with the table of links.
    introduction = (
        f"{_introduction(simulation)} Loads are those of shortest paths with equal-cost multipath, "
        "and of segment lists, tunnels or flexible algorithms where any are installed. Each number "
        "of a failure is the maximum over all matrices; the map shows the matrix with the largest "
        "utilisation."
    )
    links = (
        _link_section(simulation)
        if simulation.forecast is None
        else _forecast_section(simulation.forecast)
    )
    write_page(path, f"Routing of {topology.name}", introduction, [section, links])


def _failure_case_by_link(topology: Topology, loads: Sequence[FloatArray]) -> dict[str, list[int]]:
    """Return the case of the map that shows the failure of each link.

    It is the case in which only links between the end nodes of the link are down.

    Args:
        topology: the network of E links.
        loads: load (E,) of each case of the map; NaN on failed links.

    Returns:
        JSON field ``case_without``: index of the case for each link, -1 for none; empty if no link
        has such a case.
    """
    case_of_link = np.full(topology.num_links, -1)
    ends = np.sort(np.stack([topology.link_source, topology.link_target], 1), axis=1)
    # A failure is that of one cable if all links without a load have the same end nodes.  Reverse
    # order: the first, worst case of a link overwrites the others.
    for case, load in reversed(list(enumerate(loads))):
        down_links = np.flatnonzero(np.isnan(load))
        if len(down_links) and (ends[down_links] == ends[down_links[0]]).all():
            case_of_link[down_links] = case
    return {"case_without": case_of_link.tolist()} if (case_of_link >= 0).any() else {}


def _introduction(simulation: Simulation) -> str:
    """Return the introduction of the page: sentences about the most utilised link, the worst
    failure, and the forecast.
    """
    growth = [] if simulation.forecast is None else [f"{forecast_sentence(simulation.forecast)}."]
    return " ".join([loads_sentence(simulation), *growth])


def loads_sentence(simulation: Simulation) -> str:
    """Return sentences about the most utilised link, the worst failure, and disconnected demand."""
    worst_matrix = simulation.worst_matrix
    sentences = [
        f"The most utilised link without failure is {worst_matrix.busiest}, at "
        f"{percent(worst_matrix.utilisation)} of its capacity."
        if worst_matrix.busiest
        else "No link is used without failure."
    ]
    # Failures, the worst first: the worst one, and the number of those that overload a link.
    if simulation.failures:
        worst_failure = simulation.failures[0]
        num_overloading = sum(
            failure.utilisation > 1 + _ROUNDING for failure in simulation.failures
        )
        subject = (
            f"The worst of {len(simulation.failures):,} failures is that of {worst_failure.failure}"
        )
        worst_load_text = (
            f": it fills {worst_failure.busiest} to {percent(worst_failure.utilisation)}"
        )
        load_clause = worst_load_text if worst_failure.busiest else ", under which no link is used"
        verb = "overloads" if num_overloading == 1 else "overload"
        sentences.append(
            f"{subject}{load_clause}. {num_overloading or 'None'} of the failures {verb} a link."
        )
        # Failures that disconnect demand.
        disconnecting = [failure for failure in simulation.failures if failure.lost > 0]
        if disconnecting:
            most_disconnecting = max(disconnecting, key=lambda failure: failure.lost)
            sentences.append(
                f"{len(disconnecting):,} of the failures disconnect demand, "
                f"that of {most_disconnecting.failure} most: {most_disconnecting.lost:.4g} Gbit/s."
            )
    return " ".join(sentences)


def _link_section(simulation: Simulation) -> Section:
    """Return the section with the table of link utilisations without failure."""
    table = link_table(simulation, 0)
    count = (
        f"{len(table.records):,} links with a capacity; maximum and mean utilisation over "
        f"{len(simulation.matrices):,} matrices"
    )
    return Section(
        title="Links without failure",
        facts=count,
        traffic="shortest paths",
        table=table,
    )


def _forecast_section(forecast: CapacityForecast) -> Section:
    """Return the section with the forecast of all links."""
    return Section(
        title="When links are full",
        facts=f"{len(forecast.full):,} of {len(forecast.links):,} links exceed "
        + percent(forecast.limit)
        + (f" by {forecast.horizon}" if forecast.horizon else ""),
        traffic=str(forecast.growth),
        table=forecast_table(
            forecast.links, "", routing="as installed", fitted=forecast.growth.fitted
        ),
        findings=[
            "A month is the first one in which the largest load exceeds the limit. Earliest and "
            "latest are the months at the ends of the confidence interval of the growth."
        ],
    )


# Files that ``teal simulate`` writes to its output folder.
FILES = PAGE, LINKS, FAILURES, FORECAST, MANIFEST = (
    "simulate.html",
    "links.csv",
    "failures.csv",
    "forecast.csv",
    "manifest.json",
)


def run_simulate(config: SimulateConfig, notify: Callable[[str], None]) -> Simulation:
    """Simulate the installed routing from settings; write page, tables and synthetic counters if
    requested.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    if config.counters is not None:
        check_out_file(config.counters, (".npz",), overwrite=config.overwrite)
    dag, traffic = load_routed(config, notify)
    result = simulate(dag, traffic, config, notify, keeps_all=config.out is not None)
    if config.counters is not None:
        measurements = installed_routing(config, dag, traffic.pairs).measurements()
        counters = synthetic_counters(dag, measurements, traffic, config.counter_error, 0)
        save_counters(config.counters, counters)
    if config.out is not None:
        manifest = partial(write_manifest, settings=config)
        write_files(config.out, {**simulation_files(result), MANIFEST: manifest})
    return result


def simulation_files(result: Simulation) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write page and tables to a path, by file name."""
    files: dict[str, Callable[[Path], None]] = {
        PAGE: partial(write_simulation_page, simulation=result),
        LINKS: partial(_write_links, result=result),
    }
    if result.failures:
        files[FAILURES] = partial(write_csv, rows=result.failures)
    if result.forecast is not None:
        files[FORECAST] = partial(write_csv, rows=result.forecast.links)
    return files


class SimulationReport(Simulation):
    """Simulated loads, with export to pandas frames, a page and files."""

    def __repr__(self) -> str:
        """Return a summary of demand, utilisation and latency of the worst matrix."""
        return describe(self)

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each failure, the worst first; if no failure was
        simulated, with a row for each matrix.
        """
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.failures or self.matrices])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write page and tables to a folder, as ``teal simulate`` does.

        Raises:
            InputError: existing results, and ``overwrite`` is false.
        """
        write_files(folder, simulation_files(self), overwrite=overwrite)


def _write_links(path: Path, result: Simulation) -> None:
    """Write a .csv table of all links with metric, mean and largest load, and utilisation."""
    frame = result.topology.to_frame()
    frame["metric"] = result.topology.metric
    frame["mean_load"] = result.mean_load
    frame["largest_load"] = result.largest_load
    capacity = result.topology.capacity
    frame["largest_utilisation"] = np.where(
        capacity > 0, result.largest_load / np.where(capacity > 0, capacity, 1), 0
    )
    frame.to_csv(path, index=False)


def simulate_outcome(config: SimulateConfig, notify: Notify) -> Outcome:
    """Run ``teal simulate``; return its summary, tables and JSON data."""
    result = run_simulate(config, notify)
    return Outcome(
        text=describe(result),
        tables=tables(result, config.worst),
        written=""
        if config.out is None
        else f"{config.out / PAGE}: open it in a browser; tables are beside it",
        data=result.to_json,
    )
