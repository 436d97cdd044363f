"""`teal simulate`: from settings to text, tables, a page with a map, and files."""

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
from teal_ip.routing.growth import forecast_table, is_full_by, when
from teal_ip.routing.igp import load_routed
from teal_ip.routing.settings import SimulateConfig
from teal_ip.routing.simulate import (
    FailureLoad,
    Outlook,
    Simulation,
    installed_routing,
    simulate,
    synthetic_counters,
)


def describe(simulation: Simulation) -> str:
    """The worst matrix without failure, and the growth and the first links that it fills, a line
    each.
    """
    one, count = simulation.worst_matrix, len(simulation.matrices)
    of = (
        f"worst of {count:,} matrices, {one.index} of {one.timestamp}"
        if count > 1
        else f"matrix {one.index}"
    )
    lost = f", {one.lost:.6g} Gbit/s between nodes without a path" if one.lost else ""
    without = simulation.without_path
    return "\n".join(
        [
            f"{of}: {one.demand:.6g} Gbit/s of demand{lost}",
            *([without.sentence()] if without is not None and without.pairs else []),
            f"largest link utilisation {100 * one.utilisation:.2f}% on {one.busiest}, "
            f"{one.overload:.6g} Gbit/s above the capacities",
            f"latency {one.latency_mean:.4g} ms on average, {one.latency_99:.4g} ms for 99% of the "
            "volume, "
            f"{one.latency_worst:.4g} ms at worst",
            *([] if simulation.outlook is None else [summary(simulation.outlook)]),
        ]
    )


def summary(outlook: Outlook) -> str:
    """How many links are full by the horizon, and which first, in a sentence."""
    full = outlook.full
    normal = [one for one in full if is_full_by(one.full, outlook.horizon)]
    by = f" by {outlook.horizon}" if outlook.horizon else ""
    if not full:
        return (
            f"With {outlook.growth}, no link passes {percent(outlook.limit)}{by}, if the routing "
            "stays"
        )
    first, count = full[0], len(full)
    where = f"when {first.worst_failure} fails" if first.worst_failure else "without failure"
    return (
        f"With {outlook.growth}, {count:,} link{'' if count == 1 else 's'} "
        f"pass{'es' if count == 1 else ''} "
        f"{percent(outlook.limit)}{by} if the routing stays, {len(normal):,} of them without "
        "failure; first "
        f"{first.link} {when(first.full_under_failure)}, {where}"
    )


def link_table(simulation: Simulation, shown: int) -> Table:
    """The loads of all links with a capacity without failure, the fullest first."""
    topology = simulation.topology
    names, capacity, live = (
        topology.link_names(),
        topology.capacity,
        np.flatnonzero(topology.capacity > 0),
    )
    largest, mean = (
        load[live] / capacity[live] for load in (simulation.largest_load, simulation.mean_load)
    )
    order = np.argsort(-largest, kind="stable")
    columns = (
        Column("link", lambda at: names[live[at]]),
        Column("largest utilisation", lambda at: float(largest[at]), percent, most_is_best=True),
        Column("mean", lambda at: float(mean[at]), percent, most_is_best=True),
        Column(
            "capacity, Gbit/s", lambda at: float(capacity[live[at]]), digits(6), most_is_best=True
        ),
    )
    return Table("fullest links without failure", columns, order.tolist(), shown)


def failure_table(simulation: Simulation, shown: int | None = None) -> Table:
    """The worst matrix without failure, then the failures, the worst first."""
    columns = (
        Column(
            "failure", lambda one: one.failure if isinstance(one, FailureLoad) else "no failure"
        ),
        Column("largest utilisation", "utilisation", percent, most_is_best=True),
        Column("on", "busiest"),
        Column("above capacity, Gbit/s", "overload", digits(4), most_is_best=True),
        Column("lost, Gbit/s", "lost", digits(4), most_is_best=True),
        _of_failure("own traffic of failed nodes, Gbit/s", _own_traffic, digits(4)),
        _of_failure("during repair", lambda one: one.repair_utilisation, percent),
        _of_failure("at risk of micro-loops, Gbit/s", lambda one: one.at_risk, digits(4)),
    )
    records = [simulation.worst_matrix, *simulation.failures]
    return Table(f"worst failures of {len(simulation.failures):,}", columns, records, shown)


def _own_traffic(one: FailureLoad) -> float:
    return one.own if one.kind == "node" else math.nan


def _of_failure(
    label: str, value: Callable[[FailureLoad], float], show: Callable[[float], str]
) -> Column:
    """A column that is empty without failure, and left out where no failure has a value."""
    return Column(
        label,
        lambda one: value(one) if isinstance(one, FailureLoad) else math.nan,
        show,
        most_is_best=True,
        optional=True,
    )


def _full_links(outlook: Outlook, shown: int) -> Table:
    by = f" by {outlook.horizon}" if outlook.horizon else ""
    title = f"links that pass {percent(outlook.limit)}{by}, if the routing stays"
    return forecast_table(
        outlook.full, title, routing="as installed", fitted=outlook.growth.fitted, shown=shown
    )


def tables(simulation: Simulation, worst: int) -> Iterator[Table]:
    """Tables of the fullest links, of those that growth fills, and of the worst failures."""
    yield link_table(simulation, worst)
    if simulation.outlook is not None and simulation.outlook.full:
        yield _full_links(simulation.outlook, worst)
    if simulation.failures:
        yield failure_table(simulation, worst + 1)


_ROUNDING = 1e-9  # relative, of a sum of demands at the capacity


def write_simulation_page(path: Path, simulation: Simulation) -> None:
    """A page with the map of the loads without failure and under failures, and the table of all
    failures.
    """
    topology = simulation.topology
    loads = {"no failure, largest of all matrices": simulation.largest_load}
    loads |= {f"{name} down": load for name, load in simulation.failure_loads.items()}
    live = topology.capacity > 0

    def utilisation(load: FloatArray) -> FloatArray:
        return np.where(live, load / np.where(live, topology.capacity, 1), np.nan)

    cases = {name: {"as installed": utilisation(load)} for name, load in loads.items()}
    if simulation.plain_load is not None:
        next(iter(cases.values()))["shortest paths alone"] = utilisation(simulation.plain_load)
    section = Section(
        title=topology.name,
        facts=(
            f"{topology.num_nodes} nodes, {topology.num_links} directed links, "
            f"{len(simulation.matrices):,} matrices"
        ),
        traffic="shortest paths",
        table=failure_table(simulation),
        map=utilisation_map(drawing_of(topology), cases)
        | _case_without(topology, list(loads.values())),
        map_first=True,
        case_label="Failure",
        scheme_label="Routing",
    )
    introduction = (
        f"{_answer(simulation)} Loads are those of shortest paths with equal-cost multipath, and "
        "of segment lists, "
        "tunnels or flexible algorithms where any are installed. Each figure of a failure is the "
        "largest of all "
        "matrices; the map shows the matrix with the largest utilisation."
    )
    links = (
        _link_section(simulation)
        if simulation.outlook is None
        else _outlook_section(simulation.outlook)
    )
    write_page(path, f"Routing of {topology.name}", introduction, [section, links])


def _case_without(topology: Topology, loads: Sequence[FloatArray]) -> dict[str, list[int]]:
    """For each link the case, a number, in which it is down and nothing between other nodes is; -1
    if there is none.

    {} where no link has such a case.
    """
    without = np.full(topology.num_links, -1)
    ends = np.sort(np.stack([topology.link_source, topology.link_target], 1), axis=1)
    for number, load in reversed(list(enumerate(loads))):  # the worst of several cases counts
        down = np.flatnonzero(np.isnan(load))
        if len(down) and (ends[down] == ends[down[0]]).all():
            without[down] = number
    return {"case_without": without.tolist()} if (without >= 0).any() else {}


def _answer(simulation: Simulation) -> str:
    """The fullest link without failure, the worst failure, and what growth fills, in sentences."""
    growth = [] if simulation.outlook is None else [f"{summary(simulation.outlook)}."]
    return " ".join([loads_sentence(simulation), *growth])


def loads_sentence(simulation: Simulation) -> str:
    """The fullest link without failure, and the worst failure."""
    one = simulation.worst_matrix
    sentences = [
        f"The fullest link is {one.busiest} at {percent(one.utilisation)} of its capacity without "
        "failure."
    ]
    if simulation.failures:
        worst, over = (
            simulation.failures[0],
            sum(failure.utilisation > 1 + _ROUNDING for failure in simulation.failures),
        )
        worst_of = f"The worst of {len(simulation.failures):,} failures is that of {worst.failure}"
        fills = f": it fills {worst.busiest} to {percent(worst.utilisation)}"
        loads = fills if worst.busiest else ", under which no link is used"
        takes = "takes" if over == 1 else "take"
        sentences.append(
            f"{worst_of}{loads}. {over or 'None'} of the failures {takes} a link beyond its "
            "capacity."
        )
        cut = [failure for failure in simulation.failures if failure.lost > 0]
        if cut:
            most = max(cut, key=lambda failure: failure.lost)
            sentences.append(
                f"{len(cut):,} of the failures cut demand off, that of {most.failure} most: "
                f"{most.lost:.4g} Gbit/s."
            )
    return " ".join(sentences)


def _link_section(simulation: Simulation) -> Section:
    """The loads of all links without failure, the fullest first."""
    table = link_table(simulation, 0)
    count = (
        f"{len(table.records):,} links with a capacity, of {len(simulation.matrices):,} matrices"
    )
    return Section(
        title="Links without failure",
        facts=f"{count} the largest and the mean",
        traffic="shortest paths",
        table=table,
    )


def _outlook_section(outlook: Outlook) -> Section:
    """When links are full, all of them."""
    return Section(
        title="When links are full",
        facts=f"{len(outlook.full):,} of {len(outlook.links):,} links pass {percent(outlook.limit)}"
        + (f" by {outlook.horizon}" if outlook.horizon else ""),
        traffic=str(outlook.growth),
        table=forecast_table(
            outlook.links, "", routing="as installed", fitted=outlook.growth.fitted
        ),
        findings=[
            "A month is the first one in which the largest load passes the limit. Earliest and "
            "latest: at the ends of "
            "the interval of a fitted growth."
        ],
    )


FILES = PAGE, LINKS, FAILURES, FORECAST, MANIFEST = (
    "simulate.html",
    "links.csv",
    "failures.csv",
    "forecast.csv",
    "manifest.json",
)


def run_simulate(config: SimulateConfig, notify: Callable[[str], None]) -> Simulation:
    """Compute the loads and, if there is a folder for them, write the files.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
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
    """The writers of the page and the tables of loads, by the names of the files."""
    files: dict[str, Callable[[Path], None]] = {
        PAGE: partial(write_simulation_page, simulation=result),
        LINKS: partial(_write_links, result=result),
    }
    if result.failures:
        files[FAILURES] = partial(write_csv, rows=result.failures)
    if result.outlook is not None:
        files[FORECAST] = partial(write_csv, rows=result.outlook.links)
    return files


class SimulationReport(Simulation):
    """The loads of the routing, as frames, a page and files."""

    def __repr__(self) -> str:
        """The report in a few lines."""
        return describe(self)

    def to_frame(self) -> Any:
        """A pandas frame, a row for each failure, the worst first; for each matrix where no failure
        was asked for.
        """
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in self.failures or self.matrices])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the page and the tables to a folder, as ``teal simulate`` does.

        Raises:
            InputError: there are results in it, and ``overwrite`` is false.
        """
        write_files(folder, simulation_files(self), overwrite=overwrite)


def _write_links(path: Path, result: Simulation) -> None:
    frame = result.topology.to_frame()
    frame["metric"] = result.topology.metric
    frame["mean_load"], frame["largest_load"] = result.mean_load, result.largest_load
    capacity = result.topology.capacity
    frame["largest_utilisation"] = np.where(
        capacity > 0, result.largest_load / np.where(capacity > 0, capacity, 1), 0
    )
    frame.to_csv(path, index=False)


def simulate_outcome(config: SimulateConfig, notify: Notify) -> Outcome:
    """`teal simulate`."""
    result = run_simulate(config, notify)
    return Outcome(
        text=describe(result),
        tables=tables(result, config.worst),
        written=""
        if config.out is None
        else f"{config.out / PAGE}: open it in a browser; tables are beside it",
        data=result.to_json,
    )
