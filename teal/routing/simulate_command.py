"""`teal simulate`: from settings to text, tables, a page with a map, and files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.app.command import Notify, Outcome
from teal.app.page import Cell, Column, Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.text import percent
from teal.app.web.layout import drawing, packed_utilisation
from teal.formats.counters import save_counters
from teal.formats.rows import write_csv
from teal.network import Topology
from teal.routing.growth import LinkForecast
from teal.routing.settings import SimulateConfig
from teal.routing.simulate import FailureLoad, MatrixLoad, Outlook, Simulation, simulate, simulated_counters
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import check_out_file, check_out_folder


def describe(simulation: Simulation) -> str:
    """The worst matrix without failure, and the growth and the first links that it fills, a line each."""
    one, count = simulation.worst_matrix, len(simulation.matrices)
    of = f"worst of {count:,} matrices, {one.index} of {one.timestamp}" if count > 1 else f"matrix {one.index}"
    lost = f", {one.lost:.6g} Gbit/s between nodes without a path" if one.lost else ""
    return "\n".join([
        f"{of}: {one.demand:.6g} Gbit/s of demand{lost}",
        f"largest link utilisation {100 * one.utilisation:.2f}% on {one.busiest}, "
        f"{one.overload:.6g} Gbit/s above the capacities",
        f"latency {one.latency_mean:.4g} ms on average, {one.latency_99:.4g} ms for 99% of the volume, "
        f"{one.latency_worst:.4g} ms at worst",
        *([] if simulation.outlook is None else [summary(simulation.outlook)]),
    ])  # fmt: skip


def summary(outlook: Outlook) -> str:
    """How many links are full by the horizon, and which first, in a sentence."""
    full, normal = outlook.full, [one for one in outlook.full if one.full and one.full <= (outlook.horizon or "9999")]
    by = f" by {outlook.horizon}" if outlook.horizon else ""
    if not full:
        return f"With {outlook.growth}, no link passes {percent(outlook.limit)}{by}, if the routing stays"
    first, count = full[0], len(full)
    where = f"when {first.worst_failure} fails" if first.worst_failure else "without failure"
    return (
        f"With {outlook.growth}, {count:,} link{'' if count == 1 else 's'} pass{'es' if count == 1 else ''} "
        f"{percent(outlook.limit)}{by} if the routing stays, {len(normal):,} of them without failure; first "
        f"{first.link} in {first.full_under_failure}, {where}"
    )


def render(simulation: Simulation, worst: int) -> Iterator[Table]:
    """A table of the fullest links, and one of the worst failures."""
    topology = simulation.topology
    capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
    names = topology.link_names()
    table = Table(title="fullest links without failure", title_justify="left")
    for column in ("link", "capacity", "largest", "mean"):
        table.add_column(column, justify="left" if column == "link" else "right")
    for link in np.argsort(-simulation.largest_load / capacity)[:worst].tolist():
        largest, mean = (load[link] / capacity[link] for load in (simulation.largest_load, simulation.mean_load))
        table.add_row(escape(names[link]), f"{topology.capacity[link]:g}", percent(largest), percent(mean))
    yield table
    if simulation.outlook is not None and simulation.outlook.full:
        yield _full_links(simulation.outlook, worst)
    if not simulation.failures:
        return
    has_repair = not math.isnan(simulation.failures[0].repair_utilisation)
    table = Table(title=f"worst failures of {len(simulation.failures):,}", title_justify="left")
    has_nodes = any(one.kind == "node" for one in simulation.failures)
    more = (("own traffic",) if has_nodes else ()) + (("during repair", "at risk") if has_repair else ())
    for column in ("failure", "largest", "on", "above capacity", "lost", *more):
        table.add_column(column, justify="left" if column in ("failure", "on") else "right")
    for one in simulation.failures[:worst]:
        extra: tuple[str, ...] = (f"{one.own:.4g}",) if has_nodes else ()
        extra += (percent(one.repair_utilisation), f"{one.at_risk:.4g}") if has_repair else ()
        table.add_row(
            escape(one.failure), percent(one.utilisation), escape(one.busiest), f"{one.overload:.4g}",
            f"{one.lost:.4g}", *extra,
        )  # fmt: skip
    yield table


_ROUNDING = 1e-9  # relative, of a sum of demands at the capacity
_FORECAST_COLUMNS = ("today", "full in", "under its worst failure", "full in", "earliest", "latest", "failure")


def _full_links(outlook: Outlook, most: int) -> Table:
    by = f" by {outlook.horizon}" if outlook.horizon else ""
    title = f"links that pass {percent(outlook.limit)}{by}, if the routing stays"
    table = Table(title=title, title_justify="left")
    shown = [0, 1, 2, 3, *([4, 5] if outlook.growth.fitted else []), 6]
    for column in ("link", *(_FORECAST_COLUMNS[number] for number in shown)):
        table.add_column(column, justify="left" if column in ("link", "failure") else "right")
    for one in outlook.full[:most]:
        cells = _forecast(one)
        table.add_row(escape(one.link), *(escape(cells[number].text) for number in shown))
    return table


def _forecast(one: LinkForecast) -> list[Cell]:
    """Cells of :data:`_FORECAST_COLUMNS`."""
    return [
        Cell(percent(one.utilisation), one.utilisation), Cell(one.full or "-"),
        Cell(percent(one.failed_utilisation), one.failed_utilisation),
        *(Cell(month or "-") for month in (one.full_under_failure, one.earliest, one.latest)), Cell(one.worst_failure),
    ]  # fmt: skip


def write_simulation_page(path: Path, simulation: Simulation) -> None:
    """A page with the map of the loads without failure and under failures, and the table of all failures."""
    topology, one = simulation.topology, simulation.worst_matrix
    cases: list[tuple[str, FloatArray]] = [("no failure, largest of all matrices", simulation.largest_load)]
    cases += [(f"{name} down", load) for name, load in simulation.failure_loads.items()]
    live = topology.capacity > 0

    def packed(load: FloatArray) -> str:
        utilisation = np.where(live, load / np.where(live, topology.capacity, 1), np.nan)
        return packed_utilisation(utilisation.astype(np.float32))

    shares, schemes = {f"{number}/0": packed(load) for number, (_, load) in enumerate(cases)}, ["as installed"]
    if simulation.plain_load is not None:
        shares["0/1"] = packed(simulation.plain_load)
        schemes.append("shortest paths alone")
    drawn = drawing(
        topology.node_names, topology.coordinates, topology.link_source, topology.link_target, topology.capacity
    )
    lines = [("no failure", _cells(one)), *((f.failure, _cells(f)) for f in simulation.failures)]
    section = Section(
        title=topology.name,
        facts=f"{topology.num_nodes} nodes, {topology.num_links} directed links, {len(simulation.matrices):,} matrices",
        traffic="shortest paths",
        columns=[
            Column("largest utilisation", most_is_best=True), Column("on", is_number=False),
            Column("above capacity, Gbit/s", most_is_best=True), Column("lost, Gbit/s", most_is_best=True),
            Column("own traffic of failed nodes, Gbit/s", most_is_best=True),
            Column("during repair", most_is_best=True), Column("at risk of micro-loops, Gbit/s", most_is_best=True),
        ],
        lines=lines,
        charts=(),
        row_label="failure",
        map={
            **drawn, "cases": [name for name, _ in cases], "schemes": schemes, "utilisation": shares,
            **_case_without(topology, [load for _, load in cases]),
        },
        map_first=True, case_label="Failure", scheme_label="Routing",
    )  # fmt: skip
    introduction = (
        f"{_answer(simulation)} Loads are those of shortest paths with equal-cost multipath, and of segment lists, "
        "tunnels or flexible algorithms where any are installed. Each failure is shown under the matrix for which it "
        "is worst."
    )
    links = _link_section(simulation) if simulation.outlook is None else _outlook_section(simulation.outlook)
    write_page(path, f"Routing of {topology.name}", introduction, [section, links])


def _case_without(topology: Topology, loads: Sequence[FloatArray]) -> dict[str, list[int]]:
    """For each link the case, a number, in which it is down and nothing between other nodes is; -1 if there is none.

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
    sentences = [f"The fullest link is {one.busiest} at {percent(one.utilisation)} of its capacity without failure."]
    if simulation.failures:
        worst, over = (
            simulation.failures[0],
            sum(failure.utilisation > 1 + _ROUNDING for failure in simulation.failures),
        )
        worst_of = f"The worst of {len(simulation.failures):,} failures is that of {worst.failure}"
        fills = f": it fills {worst.busiest} to {percent(worst.utilisation)}"
        loads = fills if worst.busiest else ", under which no link is used"
        takes = "takes" if over == 1 else "take"
        sentences.append(f"{worst_of}{loads}. {over or 'None'} of the failures {takes} a link beyond its capacity.")
        cut = [failure for failure in simulation.failures if failure.lost > 0]
        if cut:
            most = max(cut, key=lambda failure: failure.lost)
            sentences.append(
                f"{len(cut):,} of the failures cut demand off, that of {most.failure} most: {most.lost:.4g} Gbit/s."
            )
    return " ".join(sentences)


def _link_section(simulation: Simulation) -> Section:
    """The loads of all links without failure, the fullest first."""
    topology = simulation.topology
    capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
    largest, mean = simulation.largest_load / capacity, simulation.mean_load / capacity
    names, live = topology.link_names(), np.flatnonzero(topology.capacity > 0)
    return Section(
        title="Links without failure",
        facts=f"{len(live):,} links with a capacity, of {len(simulation.matrices):,} matrices the largest and the mean",
        traffic="shortest paths",
        columns=[Column(name, most_is_best=True) for name in ("largest utilisation", "mean", "capacity, Gbit/s")],
        lines=[
            (names[link], [*(Cell(percent(float(one[link])), float(one[link])) for one in (largest, mean)),
                           Cell(f"{topology.capacity[link]:g}", float(topology.capacity[link]))])
            for link in live[np.argsort(-largest[live], kind="stable")].tolist()
        ],
        charts=(),
        row_label="link",
    )  # fmt: skip


def _outlook_section(outlook: Outlook) -> Section:
    """When links are full, all of them."""
    numeric = ("today", "under its worst failure")
    return Section(
        title="When links are full",
        facts=f"{len(outlook.full):,} of {len(outlook.links):,} links pass {percent(outlook.limit)}"
        + (f" by {outlook.horizon}" if outlook.horizon else ""),
        traffic=str(outlook.growth),
        columns=[Column(name, is_number=name in numeric) for name in _FORECAST_COLUMNS],
        lines=[(one.link, _forecast(one)) for one in outlook.links],
        charts=(),
        row_label="link",
        findings=[
            "A month is the first one in which the largest load passes the limit. Earliest and latest: at the ends of "
            "the interval of a fitted growth."
        ],
    )  # fmt: skip


def _cells(one: MatrixLoad | FailureLoad) -> list[Cell]:
    own = repair = at_risk = math.nan
    if isinstance(one, FailureLoad):
        own, repair, at_risk = one.own, one.repair_utilisation, one.at_risk
    numbers = (one.overload, one.lost)
    return [
        Cell(percent(one.utilisation), one.utilisation), Cell(one.busiest),
        *(Cell(f"{number:.4g}", number) for number in numbers),
        Cell("" if math.isnan(own) else f"{own:.4g}", own),
        Cell("" if math.isnan(repair) else percent(repair), repair),
        Cell("" if math.isnan(at_risk) else f"{at_risk:.4g}", at_risk),
    ]  # fmt: skip


FILES = PAGE, LINKS, FAILURES, FORECAST, MANIFEST = (
    "simulate.html", "links.csv", "failures.csv", "forecast.csv", "manifest.json"
)  # fmt: skip


def run_simulate(config: SimulateConfig, notify: Callable[[str], None]) -> Simulation:
    """Compute the loads and, if there is a folder for them, write the files.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    if config.counters is not None:
        check_out_file(config.counters, (".npz",), overwrite=config.overwrite)
    result = simulate(config, notify)
    if config.counters is not None:
        save_counters(config.counters, simulated_counters(config, notify))
    if config.out is not None:
        files: dict[str, Callable[[Path], None]] = {
            PAGE: partial(write_simulation_page, simulation=result),
            LINKS: partial(_write_links, result=result),
            MANIFEST: partial(write_manifest, settings=config),
        }
        if result.failures:
            files[FAILURES] = partial(write_csv, rows=result.failures)
        if result.outlook is not None:
            files[FORECAST] = partial(write_csv, rows=result.outlook.links)
        write_files(config.out, files)
    return result


def _write_links(path: Path, result: Simulation) -> None:
    frame = result.topology.to_frame()
    frame["metric"] = result.topology.metric
    frame["mean_load"], frame["largest_load"] = result.mean_load, result.largest_load
    capacity = result.topology.capacity
    frame["largest_utilisation"] = np.where(capacity > 0, result.largest_load / np.where(capacity > 0, capacity, 1), 0)
    frame.to_csv(path, index=False)


def simulate_outcome(config: SimulateConfig, notify: Notify) -> Outcome:
    """`teal simulate`."""
    result = run_simulate(config, notify)
    return Outcome(
        text=describe(result),
        tables=render(result, config.worst),
        written="" if config.out is None else f"{config.out / PAGE}: open it in a browser; tables are beside it",
        data=result.to_json,
    )
