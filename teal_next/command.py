"""`teal next-interval`: from settings to tables, charts, page and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from teal.app.chart import MAX_POINTS, SHARE_RANGE, Chart, Series, distribution
from teal.app.command import Notify, Outcome
from teal.app.image import plot_panels
from teal.app.instance import Instance, load_instance, rows_of
from teal.app.page import Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.settings import InstanceConfig
from teal.app.table import Column, Table
from teal.app.text import time_text
from teal.errors import InputError
from teal.evaluation.cases import selection_text
from teal.evaluation.report_command import Reported
from teal.evaluation.rows import by_network, by_scheme
from teal.formats import load_traffic
from teal.formats.rows import read_csv, write_csv
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.network.traffic import spread
from teal.objectives import ObjectiveName
from teal.runtime.storage import check_out_folder
from teal.schemes.hedges import make_hedge
from teal_next.evaluation import NextInterval, NextRow, NextSummary, summarise
from teal_next.mixture import Mixture
from teal_next.settings import NextIntervalConfig

_NARROW = ("scheme", "mean", "p99", "churn", "limit held", "time")


def interval_tables(summaries: Sequence[NextSummary], *, wide: bool) -> list[Table]:
    """The table of each network."""
    return [interval_table(of_network, wide=wide) for of_network in by_network(summaries).values()]


def interval_table(summaries: Sequence[NextSummary], *, wide: bool) -> Table:
    """Realised over optimum, churn, the stated limit and the time of one network's schemes, the
    best first.

    Args:
        summaries: summaries of one network.
        wide: all columns; otherwise those that fit 80 characters.
    """
    one = summaries[0]
    columns = [
        Column("scheme", "scheme"),
        Column("mean", "mean", _number),
        Column("p50", "p50", _number),
        Column("p90", "p90", _number),
        Column("p99", "p99", _number),
        Column("worst", "worst", _number),
        Column("churn", "churn", _share),
        Column("limit held", "coverage", _share),
        Column("limit - ratio", "width", _number),
        Column("time", "solve_s", time_text),
    ]
    shown = [column for column in columns if wide or column.label in _NARROW]
    title = f"{one.topology}, {one.traffic}: {one.intervals} intervals, realised / optimum"
    return Table(title, shown, _from_the_best(summaries))


def _from_the_best(summaries: Sequence[NextSummary]) -> list[NextSummary]:
    return sorted(summaries, key=lambda s: abs(s.mean - 1) if math.isfinite(s.mean) else math.inf)


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _share(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else "-"


def charts_of(rows: Sequence[NextRow]) -> list[Chart]:
    """The charts of one network: over time, distributions, and the best scheme within its stated
    limit.
    """
    what = (
        "utilisation"
        if rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value
        else "satisfied demand"
    )
    label = f"realised {what} / optimum"
    schemes = by_scheme(rows)
    charts = [
        Chart(
            "ratio-over-time",
            f"Realised {what} over the optimum",
            "Each interval, whose matrix no scheme had seen.",
            "",
            label,
            tuple(_over_time(name, part, lambda r: r.ratio) for name, part in schemes.items()),
            "time",
        ),
        Chart(
            "ratio",
            "Share of intervals",
            "Intervals whose ratio is at most so large.",
            label,
            "share of intervals (%)",
            tuple(
                distribution(name, np.array([r.ratio for r in part]))
                for name, part in schemes.items()
            ),
            "linear",
            SHARE_RANGE,
        ),
    ]
    if any(math.isfinite(row.limit) for row in rows):
        best = _from_the_best(summarise(rows))[0].scheme
        charts.append(
            Chart(
                "limit",
                f"{best}: the stated limit",
                "Stated before the interval, to hold in 95% of them.",
                "",
                label,
                (
                    _over_time(best, schemes[best], lambda r: r.ratio),
                    _over_time("stated limit", schemes[best], lambda r: r.limit),
                ),
                "time",
            )
        )
    moved = tuple(
        _over_time(name, of_scheme, lambda r: 100 * r.churn) for name, of_scheme in schemes.items()
    )
    charts.append(
        Chart(
            "churn",
            "Churn",
            "Share of the volume that moves between two intervals.",
            "",
            "churn (%)",
            moved,
            "time",
        )
    )
    return charts


def _over_time(name: str, rows: Sequence[NextRow], number: Callable[[NextRow], float]) -> Series:
    drawn = [rows[i] for i in spread(np.arange(len(rows)), MAX_POINTS).tolist()]
    values = [number(row) for row in drawn]
    return Series(
        name,
        "line",
        [row.timestamp for row in drawn],
        [v if math.isfinite(v) else None for v in values],
    )


def figures_of_intervals(rows: Sequence[NextRow]) -> dict[str, list[Chart]]:
    """The charts of each network."""
    return {
        topology: charts_of(of_network) for (topology, _), of_network in by_network(rows).items()
    }


def plot_next_interval(path: Path, rows: Sequence[NextRow]) -> None:
    """For each network two panels: realised over optimum over time, and its distribution."""
    plot_panels(
        path,
        [
            (topology, charts_of(of_network)[:2])
            for (topology, _), of_network in by_network(rows).items()
        ],
    )


def write_next_interval_report(
    path: Path, rows: Sequence[NextRow], selections: Mapping[str, str]
) -> None:
    """Write the page.

    Args:
        path: path of the file.
        rows: at least one.
        selections: measured matrices of each network, in words, by the name of the topology.
    """
    sections = []
    for (topology, traffic), of_network in by_network(rows).items():
        table = interval_table(summarise(of_network), wide=True)
        count = len({row.index for row in of_network})
        sections.append(
            Section(
                title=topology,
                facts=selections.get(topology, f"{count} intervals"),
                traffic=traffic,
                table=table,
                charts=charts_of(of_network),
            )
        )
    write_page(
        path,
        "The next interval",
        f"Objective: `{rows[0].objective}`. Schemes allocated for matrices that they had not seen; "
        "the traffic then "
        "followed their splits. Ratios are to the optimum of the matrix that came, which nobody "
        "knew; 1 is best.",
        sections,
    )


FILES = TABLE, SUMMARY, MANIFEST, PLOT, REPORT = (
    "next_interval.csv",
    "next_interval_summary.csv",
    "manifest.json",
    "next_interval.png",
    "report.html",
)
DEFAULT_HEDGES = ("mixture", "last", "peak", "saa12", "saa36", "saa144", "static")
# Intervals before the measured ones, in which hedges and their limits see what they would have
# seen.
_WARM_UP_INTERVALS = 100


def run_next_interval(
    config: NextIntervalConfig, notify: Callable[[str], None]
) -> list[NextSummary]:
    """Measure every hedge on every network, then write everything; an interruption writes the rows
    so far.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    for name, model in ((n, m) for m in config.models() for n in config.scheme or DEFAULT_HEDGES):
        make_hedge(name, model)  # so that a fault shows before anything slow
    rows: list[NextRow] = []
    selections: dict[str, str] = {}
    try:
        for number, instance_config in enumerate(config.instances()):
            _run_network(config, instance_config, config.models()[number], notify, rows, selections)
    finally:
        if rows:
            _write(config, rows, selections)
    return summarise(rows)


def _run_network(
    config: NextIntervalConfig,
    settings: InstanceConfig,
    model: Path | None,
    notify: Callable[[str], None],
    rows: list[NextRow],
    selections: dict[str, str],
) -> None:
    """Append the rows of a network to ``rows``, interval by interval, and note which matrices they
    are about.
    """
    instance = load_instance(settings, notify)
    hedges = {name: make_hedge(name, model) for name in config.scheme or DEFAULT_HEDGES}
    measured = rows_of(instance, config.split)
    measured = measured[: config.limit or None]
    measured = measured[measured >= config.lead]
    if not len(measured):
        raise InputError(
            settings.traffic,
            "",
            f"matrices after the first {config.lead}",
            instance.traffic.num_matrices,
        )
    selections[instance.topology.name] = selection_text(
        len(measured), instance, config, is_consecutive=True
    )
    known = _known(config, settings, instance) if config.known else None
    protocol = NextInterval(
        instance, hedges, lead=config.lead, lookback=config.lookback, known=known
    )
    with tqdm(total=len(measured), desc=instance.topology.name, unit="interval") as bar:
        for interval in protocol.run(measured.tolist(), _WARM_UP_INTERVALS):
            rows += interval
            bar.update()
    for hedge in hedges.values():
        if isinstance(hedge, Mixture):
            notify(f"{instance.topology.name}: {hedge.regret}")


def _known(
    config: NextIntervalConfig, settings: InstanceConfig, instance: Instance
) -> TrafficMatrices:
    """The matrices that schemes know: those of --known over the demands and times of the traffic.

    Raises:
        InputError: other times, or demands that are missing.
    """
    known, traffic = (
        load_traffic(config.known, instance.topology, unit=settings.traffic_unit),
        instance.traffic,
    )
    if not np.array_equal(known.timestamps, traffic.timestamps):
        expected = f"the {traffic.num_matrices} times of {settings.traffic}"
        raise InputError("--known", "timestamps", expected, f"{known.num_matrices} other ones")
    if not np.array_equal(known.pairs, traffic.pairs):
        place = {(int(s), int(t)): d for d, (s, t) in enumerate(known.pairs)}
        missing = [pair for pair in map(tuple, traffic.pairs.tolist()) if pair not in place]
        if missing:
            names = instance.topology.node_names
            source, target = (names[node] for node in missing[0])
            raise InputError("--known", "demands", "all of --traffic", f"no {source} -> {target}")
        rates = known.read(slice(None))[
            :, [place[pair] for pair in map(tuple, traffic.pairs.tolist())]
        ]
        known = dataclasses.replace(known, pairs=traffic.pairs, rates=ArrayRates(rates), scale=1.0)
    return known


def _write(config: NextIntervalConfig, rows: list[NextRow], selections: dict[str, str]) -> None:
    write_files(
        config.out,
        {
            TABLE: partial(write_csv, rows=rows),
            SUMMARY: partial(write_csv, rows=summarise(rows)),
            MANIFEST: partial(write_manifest, settings=config),
            PLOT: partial(plot_next_interval, rows=rows),
            REPORT: partial(write_next_interval_report, rows=rows, selections=selections),
        },
    )


def next_interval_outcome(config: NextIntervalConfig, notify: Notify) -> Outcome:
    """`teal next-interval`."""
    summaries = run_next_interval(config, notify)
    return Outcome(
        tables=interval_tables(summaries, wide=config.wide),
        wide=config.wide,
        written=", ".join(str(config.out / name) for name in FILES),
        data={"summary": summaries},
    )


def reported(folders: Sequence[Path]) -> Reported:
    """The results of several runs together, for `teal report`."""
    rows = [row for folder in folders for row in read_csv(folder / TABLE, NextRow)]
    return Reported(
        rows=len(rows),
        charts=figures_of_intervals(rows),
        tables=interval_tables(summarise(rows), wide=True),
        write=partial(write_next_interval_report, rows=rows, selections={}),
    )
