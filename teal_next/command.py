"""``teal next-interval``: run from settings; write tables, charts, page and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from teal.app.chart import Chart, Series, distribution
from teal.app.command import Notify, Outcome
from teal.app.image import plot_panels
from teal.app.instance import Instance, load_instance, rows_of
from teal.app.page import Section, write_page
from teal.app.run_files import JOURNAL, RESUME_HINT, Journal, write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import time_text
from teal.errors import InputError
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
from teal_study.evaluation.cases import selection_text
from teal_study.evaluation.report_command import Reported
from teal_study.evaluation.rows import by_network, by_scheme

# Columns of the narrow table.
_NARROW_COLUMNS = ("scheme", "mean", "p99", "churn", "limit held", "time")

# Points of a line over time; more would not be visible.
_MAX_LINE_POINTS = 400


def interval_tables(summaries: Sequence[NextSummary], *, wide: bool) -> list[Table]:
    """Return a table for each network, with a row for each scheme.

    Args:
        summaries: summaries of all schemes on all networks.
        wide: show all columns; otherwise only those that fit 80 characters.
    """
    return [
        interval_table(network_rows, wide=wide) for network_rows in by_network(summaries).values()
    ]


def interval_table(summaries: Sequence[NextSummary], *, wide: bool) -> Table:
    """Return a table of one network with a row for each scheme, the best one first.

    Columns are the ratio of realised to optimal metric, churn, conformal limit and solve time.

    Args:
        summaries: summaries of one network.
        wide: show all columns; otherwise those that fit 80 characters.
    """
    first = summaries[0]
    columns = [
        Column("scheme", "scheme"),
        Column("mean", "mean", _ratio_text),
        Column("p50", "p50", _ratio_text),
        Column("p90", "p90", _ratio_text),
        Column("p99", "p99", _ratio_text),
        Column("worst", "worst", _ratio_text),
        Column("churn", "churn", _percent_text),
        Column("limit held", "coverage", _percent_text),
        Column("limit - ratio", "width", _ratio_text),
        Column("time", "solve_s", time_text),
    ]
    shown_columns = [column for column in columns if wide or column.label in _NARROW_COLUMNS]
    title = f"{first.topology}, {first.traffic}: {first.intervals} intervals, realised / optimum"
    return Table(title, shown_columns, _best_first(summaries))


def _best_first(summaries: Sequence[NextSummary]) -> list[NextSummary]:
    """Sort summaries by the distance of the mean ratio from 1, the smallest first; non-finite means
    are last.
    """
    return sorted(summaries, key=lambda s: abs(s.mean - 1) if math.isfinite(s.mean) else math.inf)


def _ratio_text(value: float) -> str:
    """Format a ratio with four decimals; ``-`` if it is not finite."""
    return f"{value:.4f}" if math.isfinite(value) else "-"


def _percent_text(value: float) -> str:
    """Format a share as a percentage; ``-`` if it is not finite."""
    return f"{100 * value:.1f}%" if math.isfinite(value) else "-"


def charts_of(rows: Sequence[NextRow]) -> list[Chart]:
    """Return the charts of one network: ratios over time, their distribution, the conformal limit
    of the best scheme, and churn.

    Args:
        rows: results of all schemes on the network, at least one.
    """
    metric_name = (
        "utilisation"
        if rows[0].objective == ObjectiveName.MAX_LINK_UTILISATION.value
        else "satisfied demand"
    )
    label = f"realised {metric_name} / optimum"
    rows_by_scheme = by_scheme(rows)
    charts = [
        _ratios_over_time(rows_by_scheme, metric_name, label),
        _ratio_distributions(rows_by_scheme, label),
    ]
    if any(math.isfinite(row.limit) for row in rows):
        best = _best_first(summarise(rows))[0].scheme
        charts.append(_stated_limits(best, rows_by_scheme[best], label))
    charts.append(_churn_over_time(rows_by_scheme))
    return charts


def _ratios_over_time(
    rows_by_scheme: Mapping[str, Sequence[NextRow]], metric_name: str, label: str
) -> Chart:
    """Return the chart of the ratio of each scheme in each interval.

    Args:
        rows_by_scheme: results of one network by scheme.
        metric_name: name of the evaluated metric.
        label: label of the axis.
    """
    return Chart(
        "ratio-over-time",
        f"Realised {metric_name} over the optimum",
        "Each interval, whose matrix no scheme had seen.",
        "",
        label,
        tuple(
            _over_time(name, scheme_rows, lambda r: r.ratio)
            for name, scheme_rows in rows_by_scheme.items()
        ),
        "time",
    )


def _ratio_distributions(rows_by_scheme: Mapping[str, Sequence[NextRow]], label: str) -> Chart:
    """Return the chart of the distribution of each scheme's ratios over the intervals.

    Args:
        rows_by_scheme: results of one network by scheme.
        label: label of the axis.
    """
    return Chart(
        "ratio",
        "Share of intervals",
        "Intervals whose ratio is at most so large.",
        label,
        "share of intervals (%)",
        tuple(
            distribution(name, np.array([r.ratio for r in scheme_rows]))
            for name, scheme_rows in rows_by_scheme.items()
        ),
        "linear",
        shows_shares=True,
    )


def _stated_limits(scheme: str, rows: Sequence[NextRow], label: str) -> Chart:
    """Return the chart of a scheme's ratios and of their conformal limits over time.

    Args:
        scheme: name of the scheme.
        rows: its results on one network.
        label: label of the axis.
    """
    return Chart(
        "limit",
        f"{scheme}: the stated limit",
        "Upper limit of the ratio, stated before each interval; it should hold in 95% of them.",
        "",
        label,
        (
            _over_time(scheme, rows, lambda r: r.ratio),
            _over_time("stated limit", rows, lambda r: r.limit),
        ),
        "time",
    )


def _churn_over_time(rows_by_scheme: Mapping[str, Sequence[NextRow]]) -> Chart:
    """Return the chart of the churn of each scheme in each interval.

    Args:
        rows_by_scheme: results of one network by scheme.
    """
    return Chart(
        "churn",
        "Churn",
        "Share of the volume that moves between two intervals.",
        "",
        "churn (%)",
        tuple(
            _over_time(name, scheme_rows, lambda r: 100 * r.churn)
            for name, scheme_rows in rows_by_scheme.items()
        ),
        "time",
    )


def _over_time(name: str, rows: Sequence[NextRow], metric: Callable[[NextRow], float]) -> Series:
    """Return a metric of the rows as a line over time, sampled if there are many.

    Args:
        name: name of the line.
        rows: results of one scheme on one network.
        metric: returns the value of a row; non-finite values are gaps.
    """
    sampled = [rows[i] for i in spread(np.arange(len(rows)), _MAX_LINE_POINTS).tolist()]
    values = [metric(row) for row in sampled]
    return Series(
        name,
        "line",
        [row.timestamp for row in sampled],
        [v if math.isfinite(v) else None for v in values],
    )


def figures_of_intervals(rows: Sequence[NextRow]) -> dict[str, list[Chart]]:
    """Return the charts of each network, by the name of its topology."""
    return {
        topology: charts_of(network_rows)
        for (topology, _), network_rows in by_network(rows).items()
    }


def plot_next_interval(path: Path, rows: Sequence[NextRow]) -> None:
    """Plot two panels per network: the ratios of realised to optimal metric over time, and their
    distribution.

    Args:
        path: the image file.
        rows: results of all schemes and networks.
    """
    plot_panels(
        path,
        [
            (topology, charts_of(network_rows)[:2])
            for (topology, _), network_rows in by_network(rows).items()
        ],
    )


def write_next_interval_report(
    path: Path, rows: Sequence[NextRow], selections: Mapping[str, str]
) -> None:
    """Write the HTML page with tables and charts of all networks.

    Args:
        path: the file.
        rows: results, at least one.
        selections: description of the evaluated matrices by name of the topology.
    """
    # One section for each network, with its table and charts.
    sections = []
    for (topology, traffic), network_rows in by_network(rows).items():
        table = interval_table(summarise(network_rows), wide=True)
        count = len({row.index for row in network_rows})
        sections.append(
            Section(
                title=topology,
                facts=selections.get(topology, f"{count} intervals"),
                traffic=traffic,
                table=table,
                charts=charts_of(network_rows),
            )
        )
    write_page(
        path,
        "The next interval",
        f"Objective: `{rows[0].objective}`. Schemes allocated for matrices that they had not seen; "
        "the traffic then followed their splits. Ratios are to the optimum of the realised matrix, "
        "which was unknown; 1 is best.",
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
    """Evaluate every hedge on every network, and write all files.

    An interrupted run writes the results so far.

    Args:
        config: the settings.
        notify: called with progress messages.

    Returns:
        a summary for each network and hedge.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    # Validate folder, models and hedges before anything slow.
    if not config.resume:
        names = (JOURNAL, *FILES)
        check_out_folder(config.out, names, overwrite=config.overwrite, hint=RESUME_HINT)
    models = config.models_by_network()
    for model in models:
        hedges_of(config, model)
    # Read the results of an interrupted run, and the index of its last matrix for each network.
    journal = Journal(config.out / JOURNAL, config, resume=config.resume)
    interval_results = NextIntervals([], {})
    for entry in journal.entries(_INTERVAL):
        interval_results.rows.extend(NextRow(**row) for row in entry["rows"])
    last_index = {
        names: max(row.index for row in network_rows)
        for names, network_rows in by_network(interval_results.rows).items()
    }
    # Evaluate the networks one after the other; skip finished intervals.
    is_complete = False
    try:
        for network_config, model in zip(config.instances(), models, strict=True):
            instance = load_instance(network_config, notify)
            instance.objective.require_an_allocation("teal next-interval")
            # New hedges for each network; intervals of an earlier run are not evaluated again.
            visible_traffic = known_matrices(config, instance)
            hedges = hedges_of(config, model)
            measure(
                instance,
                config,
                hedges,
                interval_results,
                visible_traffic,
                notify,
                on_interval=partial(_write_to_journal, journal),
                after=last_index.get((instance.topology.name, instance.traffic.name), -1),
            )
        is_complete = True
    finally:
        # Write the results so far; the journal is needed only to continue an interrupted run.
        if interval_results.rows:
            write_files(config.out, interval_files(interval_results))
            write_files(config.out, {MANIFEST: partial(write_manifest, settings=config)})
        if is_complete or not interval_results.rows:
            journal.remove()
    return summarise(interval_results.rows)


# Kind of the journal's entries: the rows of all hedges in an interval.
_INTERVAL = "interval"


def _write_to_journal(journal: Journal, rows: Sequence[NextRow]) -> None:
    """Append the results of all hedges in one interval to the journal.

    Args:
        journal: journal of the run.
        rows: a row for each hedge.
    """
    journal.add(_INTERVAL, {"rows": [dataclasses.asdict(row) for row in rows]})


def hedges_of(options: NextIntervalOptions, model: Path | None) -> dict[str, Hedge]:
    """Return the hedges of the settings by name, or the default ones.

    Args:
        options: settings with the names of the hedges.
        model: checkpoint for hedges that need one; None for Teal's own.

    Raises:
        InputError: an unknown hedge or model.
    """
    return {name: make_hedge(name, model) for name in options.scheme or DEFAULT_HEDGES}


@dataclasses.dataclass(frozen=True, eq=False)
class NextIntervals:
    """Results of hedges over consecutive intervals.

    Attributes:
        rows: a row for each hedge and interval.
        selections: description of each network's evaluated matrices.
    """

    rows: list[NextRow]
    selections: dict[str, str]

    def __repr__(self) -> str:
        """Return the table of each network, as text."""
        return "\n".join(t.markdown() for t in interval_tables(summarise(self.rows), wide=True))

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each hedge, as in next_interval_summary.csv."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(summary) for summary in summarise(self.rows)])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write rows, summary, plot and page to a folder, as ``teal next-interval`` does.

        Args:
            folder: the folder.
            overwrite: whether existing results are replaced.

        Raises:
            InputError: existing results, and ``overwrite`` is false.
        """
        names = [name for name in FILES if name != MANIFEST]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        write_files(Path(folder), interval_files(self))


def measure(
    instance: Instance,
    options: NextIntervalOptions,
    hedges: Mapping[str, Hedge],
    interval_results: NextIntervals,
    visible_traffic: TrafficMatrices | None,
    notify: Callable[[str], None] = lambda _: None,
    *,
    on_interval: Callable[[Sequence[NextRow]], None] = lambda _: None,
    after: int = -1,
) -> None:
    """Evaluate hedges on the intervals of one network; append the results to ``interval_results``.

    Args:
        instance: network, traffic, candidate paths and program.
        options: settings: split, limit, lead, lookback, warm-up.
        hedges: hedges by name.
        interval_results: results of all networks (updated).
        visible_traffic: matrices that hedges see, such as estimates; None: the evaluated traffic.
        notify: called with messages.
        on_interval: called with the rows of each interval.
        after: index of the last matrix that an interrupted run has evaluated; -1 for none.

    Raises:
        InputError: too few matrices.
    """
    # Indices of the matrices to evaluate, which have at least ``lead`` matrices before them.
    matrix_indices = rows_of(instance, options.split)[: options.limit or None]
    matrix_indices = matrix_indices[matrix_indices >= options.lead]
    if not len(matrix_indices):
        raise InputError.invalid(
            instance.traffic.name,
            "",
            f"no evaluated matrix has {options.lead} earlier ones, as --lead requires; the traffic "
            f"has {instance.traffic.num_matrices} matrices",
        )
    interval_results.selections[instance.topology.name] = selection_text(
        len(matrix_indices), instance, options, is_consecutive=True
    )
    remaining_indices = matrix_indices[matrix_indices > after].tolist()
    if remaining_indices:
        _measure_each(
            instance,
            options,
            hedges,
            interval_results,
            visible_traffic,
            remaining_indices,
            on_interval,
        )
    # Report the regret of each mixture: its loss less that of its best hedge.
    for hedge in hedges.values():
        if isinstance(hedge, Mixture) and remaining_indices:
            notify(f"{instance.topology.name}: {hedge.regret}")


def _measure_each(
    instance: Instance,
    options: NextIntervalOptions,
    hedges: Mapping[str, Hedge],
    interval_results: NextIntervals,
    visible_traffic: TrafficMatrices | None,
    indices: Sequence[int],
    on_interval: Callable[[Sequence[NextRow]], None],
) -> None:
    """Evaluate hedges on consecutive intervals.

    A progress bar shows the current hedge and the best one so far.

    Args:
        instance: network, traffic, candidate paths and program.
        options: settings: lead, lookback, warm-up.
        hedges: hedges by name.
        interval_results: results of all networks (updated).
        visible_traffic: matrices that hedges see, such as estimates; None: the evaluated traffic.
        indices: indices of the consecutive matrices.
        on_interval: called with the rows of each interval.
    """
    # Sum and number of the finite ratios of each hedge.
    ratio_sums = dict.fromkeys(hedges, 0.0)
    ratio_counts = dict.fromkeys(hedges, 0)
    best_text = "no interval measured yet"

    def watch(hedge: str) -> None:
        """Show the name of the hedge that allocates now in the progress bar."""
        bar.set_postfix_str(f"{hedge}; {best_text}", refresh=False)

    protocol = NextInterval(
        instance,
        dict(hedges),
        lead=options.lead,
        lookback=options.lookback,
        observed_traffic=visible_traffic,
        watch=watch,
    )
    total = len(protocol.intervals(indices, options.warm_up))
    with progress_bar(total=total, desc=instance.topology.name, unit="interval") as bar:
        # The results of an interval are empty during warm-up and without demand.
        for interval_rows in protocol.run(indices, options.warm_up):
            if interval_rows:
                interval_results.rows.extend(interval_rows)
                on_interval(interval_rows)
                for row in interval_rows:
                    is_finite = math.isfinite(row.ratio)
                    ratio_sums[row.scheme] += row.ratio if is_finite else 0.0
                    ratio_counts[row.scheme] += is_finite
                best_text = _best_so_far(ratio_sums, ratio_counts)
            bar.update()


def _best_so_far(sums: Mapping[str, float], counts: Mapping[str, int]) -> str:
    """Return a text with the scheme whose mean ratio is closest to 1.

    Args:
        sums: sum of the finite ratios of each scheme.
        counts: number of finite ratios of each scheme.
    """
    # Mean of the finite ratios of each scheme that has any.
    means = {name: sums[name] / count for name, count in counts.items() if count}
    if not means:
        return "no ratio measured yet"
    best_scheme = min(means, key=lambda name: abs(means[name] - 1))
    return f"best so far {best_scheme}, mean {means[best_scheme]:.4f}"


def known_matrices(options: NextIntervalOptions, instance: Instance) -> TrafficMatrices | None:
    """Return the matrices that hedges see instead of the traffic, from the option --known.

    Args:
        options: settings with the option.
        instance: network and traffic.

    Returns:
        matrices over the same demands and times as the traffic; None without the option.

    Raises:
        InputError: other times than the traffic, or missing demands.
    """
    if not options.known:
        return None
    visible_traffic = load_traffic(options.known, instance.topology, unit=options.traffic_unit)
    traffic = instance.traffic
    if not np.array_equal(visible_traffic.timestamps, traffic.timestamps):
        expected = f"the {traffic.num_matrices} times of {traffic.name}"
        actual = f"{visible_traffic.num_matrices} times, which differ"
        raise InputError("--known", "timestamps", expected, actual)
    # Reorder the demands like those of the traffic.
    if not np.array_equal(visible_traffic.pairs, traffic.pairs):
        # Index of each demand by its source and target.
        pair_index = {(int(s), int(t)): d for d, (s, t) in enumerate(visible_traffic.pairs)}
        missing = [pair for pair in map(tuple, traffic.pairs.tolist()) if pair not in pair_index]
        if missing:
            names = instance.topology.node_names
            source, target = (names[node] for node in missing[0])
            raise InputError.invalid(
                "--known", "demands", f"no demand {source} -> {target}, which --traffic has"
            )
        rates = visible_traffic.read(slice(None))[
            :, [pair_index[pair] for pair in map(tuple, traffic.pairs.tolist())]
        ]
        visible_traffic = dataclasses.replace(
            visible_traffic, pairs=traffic.pairs, rates=ArrayRates(rates), scale=1.0
        )
    return visible_traffic


def interval_files(interval_results: NextIntervals) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write the result files, by file name."""
    rows = interval_results.rows
    selections = interval_results.selections
    return {
        TABLE: partial(write_csv, rows=rows),
        SUMMARY: partial(write_csv, rows=summarise(rows)),
        PLOT: partial(plot_next_interval, rows=rows),
        REPORT: partial(write_next_interval_report, rows=rows, selections=selections),
    }


def next_interval_outcome(config: NextIntervalConfig, notify: Notify) -> Outcome:
    """Run ``teal next-interval``.

    Args:
        config: the settings.
        notify: called with progress messages.

    Returns:
        tables, JSON data and written files.
    """
    summaries = run_next_interval(config, notify)
    return Outcome(
        tables=interval_tables(summaries, wide=config.wide),
        wide=config.wide,
        written=", ".join(str(config.out / name) for name in FILES),
        data={"summary": summaries},
    )


def reported(folders: Sequence[Path]) -> Reported:
    """Combine the results of several runs of ``teal next-interval``, for ``teal report``.

    Args:
        folders: result folders of the runs.
    """
    rows = [row for folder in folders for row in read_csv(folder / TABLE, NextRow)]
    return Reported(
        rows=len(rows),
        charts=figures_of_intervals(rows),
        tables=interval_tables(summarise(rows), wide=True),
        write=partial(write_next_interval_report, rows=rows, selections={}),
    )
