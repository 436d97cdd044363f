"""`teal next-interval`: from settings to tables, charts, page and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.chart import MAX_POINTS, Chart, Series, distribution
from teal.app.command import Notify, Outcome
from teal.app.image import plot_panels
from teal.app.instance import Instance, load_instance, rows_of
from teal.app.page import Section, write_page
from teal.app.run_files import JOURNAL, RESUME_HINT, Journal, write_files, write_manifest
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
from teal.runtime.progress import progress_bar
from teal.runtime.storage import check_out_folder
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Hedge
from teal_next.evaluation import NextInterval, NextRow, NextSummary, summarise
from teal_next.mixture import Mixture
from teal_next.settings import NextIntervalConfig, NextIntervalOptions

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
            shows_shares=True,
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


def run_next_interval(
    config: NextIntervalConfig, notify: Callable[[str], None]
) -> list[NextSummary]:
    """Measure every hedge on every network, then write everything; an interruption writes the rows
    so far.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    if not config.resume:
        names = (JOURNAL, *FILES)
        check_out_folder(config.out, names, overwrite=config.overwrite, hint=RESUME_HINT)
    models = config.models_by_network()
    for model in models:  # so that a fault shows before anything slow
        hedges_of(config, model)
    journal = Journal(config.out / JOURNAL, config, resume=config.resume)
    measured = NextIntervals([], {})
    for entry in journal.entries(_INTERVAL):
        measured.rows.extend(NextRow(**row) for row in entry["rows"])
    last_of = {
        names: max(row.index for row in earlier)
        for names, earlier in by_network(measured.rows).items()
    }
    is_whole = False
    try:
        for of_network, model in zip(config.instances(), models, strict=True):
            instance = load_instance(of_network, notify)
            instance.objective.require_an_allocation("teal next-interval")
            known = known_matrices(config, instance)
            hedges = hedges_of(config, model)
            measure(
                instance,
                config,
                hedges,
                measured,
                known,
                notify,
                keep=partial(_keep, journal),
                after=last_of.get((instance.topology.name, instance.traffic.name), -1),
            )
        is_whole = True
    finally:
        if measured.rows:
            write_files(config.out, interval_files(measured))
            write_files(config.out, {MANIFEST: partial(write_manifest, settings=config)})
        if is_whole or not measured.rows:
            journal.remove()
    return summarise(measured.rows)


_INTERVAL = "interval"  # kind of the entries of the journal: the rows of all hedges in an interval


def _keep(journal: Journal, rows: Sequence[NextRow]) -> None:
    journal.add(_INTERVAL, {"rows": [dataclasses.asdict(row) for row in rows]})


def hedges_of(options: NextIntervalOptions, model: Path | None) -> dict[str, Hedge]:
    """The hedges by their names.

    Raises:
        InputError: a hedge or model that there is not.
    """
    return {name: make_hedge(name, model) for name in options.scheme or DEFAULT_HEDGES}


@dataclasses.dataclass(frozen=True, eq=False)
class NextIntervals:
    """Hedges over consecutive intervals.

    Attributes:
        rows: a row for each hedge and interval.
        selections: matrices of each network that were measured, in words.
    """

    rows: list[NextRow]
    selections: dict[str, str]

    def __repr__(self) -> str:
        """The table of each network."""
        return "\n".join(t.markdown() for t in interval_tables(summarise(self.rows), wide=True))

    def to_frame(self) -> Any:
        """A pandas frame, a row for each hedge, as in next_interval_summary.csv."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in summarise(self.rows)])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write rows, summary, plot and page to a folder, as ``teal next-interval`` does.

        Raises:
            InputError: there are results in it, and ``overwrite`` is false.
        """
        names = [name for name in FILES if name != MANIFEST]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        write_files(Path(folder), interval_files(self))


def measure(
    instance: Instance,
    options: NextIntervalOptions,
    hedges: Mapping[str, Hedge],
    measured: NextIntervals,
    known: TrafficMatrices | None,
    notify: Callable[[str], None] = lambda _: None,
    *,
    keep: Callable[[Sequence[NextRow]], None] = lambda _: None,
    after: int = -1,
) -> None:
    """Append the rows of a network, interval by interval.

    Args:
        instance: network, traffic, candidate paths and program.
        options: the intervals, and what hedges know.
        hedges: by the name that rows give them.
        measured: receives the rows.
        known: the matrices that hedges are given; None for those of the traffic.
        notify: called with what was found.
        keep: called with the rows of each interval.
        after: number of the last matrix that an interrupted run has measured; -1 for none.

    Raises:
        InputError: too few matrices.
    """
    rows = rows_of(instance, options.split)[: options.limit or None]
    rows = rows[rows >= options.lead]
    if not len(rows):
        raise InputError(
            instance.traffic.name,
            "",
            f"matrices after the first {options.lead}",
            instance.traffic.num_matrices,
        )
    measured.selections[instance.topology.name] = selection_text(
        len(rows), instance, options, is_consecutive=True
    )
    numbers = rows[rows > after].tolist()
    if numbers:
        _measure_each(instance, options, hedges, measured, known, numbers, keep)
    for hedge in hedges.values():
        if isinstance(hedge, Mixture) and numbers:
            notify(f"{instance.topology.name}: {hedge.regret}")


def _measure_each(
    instance: Instance,
    options: NextIntervalOptions,
    hedges: Mapping[str, Hedge],
    measured: NextIntervals,
    known: TrafficMatrices | None,
    numbers: Sequence[int],
    keep: Callable[[Sequence[NextRow]], None],
) -> None:
    """Measure intervals under a bar that says which hedge is at work, and which is the best so far.

    Args:
        instance, options, hedges, measured, known, keep: as in :func:`measure`.
        numbers: rows of the consecutive matrices.
    """
    sums = dict.fromkeys(hedges, 0.0)  # of the finite ratios of each hedge
    counts = dict.fromkeys(hedges, 0)  # of these ratios
    best = "no interval measured yet"

    def watch(hedge: str) -> None:
        bar.set_postfix_str(f"{hedge}; {best}", refresh=False)

    protocol = NextInterval(
        instance,
        dict(hedges),
        lead=options.lead,
        lookback=options.lookback,
        known=known,
        watch=watch,
    )
    total = len(protocol.intervals(numbers, options.warm_up))
    with progress_bar(total=total, desc=instance.topology.name, unit="interval") as bar:
        for interval in protocol.run(numbers, options.warm_up):
            if interval:
                measured.rows.extend(interval)
                keep(interval)
                for row in interval:
                    is_finite = math.isfinite(row.ratio)
                    sums[row.scheme] += row.ratio if is_finite else 0.0
                    counts[row.scheme] += is_finite
                best = _best_so_far(sums, counts)
            bar.update()


def _best_so_far(sums: Mapping[str, float], counts: Mapping[str, int]) -> str:
    """The scheme of the best mean ratio, in words.

    Args:
        sums: sum of the finite ratios of each scheme.
        counts: number of them.
    """
    means = {name: sums[name] / count for name, count in counts.items() if count}
    if not means:
        return "no ratio measured yet"
    best = min(means, key=lambda name: abs(means[name] - 1))
    return f"best so far {best}, mean {means[best]:.4f}"


def known_matrices(options: NextIntervalOptions, instance: Instance) -> TrafficMatrices | None:
    """The matrices that schemes know: those of --known over the demands and times of the traffic;
    None without them.

    Raises:
        InputError: other times, or demands that are missing.
    """
    if not options.known:
        return None
    known = load_traffic(options.known, instance.topology, unit=options.traffic_unit)
    traffic = instance.traffic
    if not np.array_equal(known.timestamps, traffic.timestamps):
        expected = f"the {traffic.num_matrices} times of {traffic.name}"
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


def interval_files(measured: NextIntervals) -> dict[str, Callable[[Path], None]]:
    """The writers of the files of the results, by the names of the files."""
    rows, selections = measured.rows, measured.selections
    return {
        TABLE: partial(write_csv, rows=rows),
        SUMMARY: partial(write_csv, rows=summarise(rows)),
        PLOT: partial(plot_next_interval, rows=rows),
        REPORT: partial(write_next_interval_report, rows=rows, selections=selections),
    }


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
