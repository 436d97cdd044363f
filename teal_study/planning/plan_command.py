"""`teal plan`: run a failure study; print findings, write tables, a plot, a page and files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from teal.app.chart import Chart, Series
from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.page import Section, write_page
from teal.app.run_files import JOURNAL, RESUME_HINT, Journal, write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.app.web.layout import drawing_of, utilisation_map
from teal.formats.rows import write_csv, write_parquet
from teal.network.failures import cable_failures
from teal.objectives import Objective
from teal.runtime.rounding import percent_at_least, percent_at_most
from teal.runtime.storage import check_out_folder
from teal_study.planning.plan import FailureLoss, Outage, PlanReport, by_failure, loss
from teal_study.planning.settings import PlanConfig
from teal_study.planning.study import plan

_MIN_STRANDED = 1e-9  # share of the demand above which a failure counts as stranding demand
_MAX_FAILURES = 25  # largest number of failures in a plot or chart


def failure_tables(outages: Sequence[Outage], worst: int, objective: Objective) -> list[Table]:
    """Return a table of failures for each kind (cable, link, node, ...), the worst failure first.

    Each failure has the losses at its worst matrix.

    Args:
        outages: every matrix under every failure.
        worst: number of failures that a terminal shows.
        objective: objective of the values.
    """
    ranked_failures = by_failure(outages, objective)
    tables = []
    for kind in dict.fromkeys(o.kind for o in outages if o.failure):
        failures_of_kind = [failure for failure in ranked_failures if failure.kind == kind]
        num_costly = sum(failure.worst > 0 or failure.stranded > 0 for failure in failures_of_kind)
        title = f"{num_costly} of {len(failures_of_kind)} {kind}s cause a certain loss"
        tables.append(Table(title, _failure_columns(objective, kind), failures_of_kind, worst))
    return tables


def _failure_columns(objective: Objective, label: str, *more: Column) -> tuple[Column, ...]:
    """Return the columns of a table of failures: name, further columns, losses, stranded demand.

    Args:
        objective: objective of the values, which names the loss.
        label: heading of the names.
        more: further columns after the names.
    """
    return (
        Column(label, "failure"),
        *more,
        Column(f"{objective.rules.loss_label}, certainly", "worst", percent, most_is_best=True),
        Column("at most", "worst_at_most", percent, most_is_best=True),
        Column("at", lambda failure: minute(failure.worst_at)),
        Column("mean", "mean", percent, most_is_best=True),
        Column("demand without a path", "stranded", percent, most_is_best=True),
    )


def minute(timestamp: str) -> str:
    """Return an ISO 8601 timestamp without seconds of 00, and with a space in place of "T".

    A text without seconds is returned as it is.
    """
    return (
        timestamp.removesuffix(":00").replace("T", " ") if timestamp.count(":") == 2 else timestamp
    )


def plot_plan(path: Path, outages: Sequence[Outage], objective: Objective) -> None:
    """Write a heat map of the certain losses: a row for each of the worst failures, time across.

    Args:
        path: image file.
        outages: every matrix under every failure.
        objective: objective of the values.
    """
    # Row of each failure and column of each matrix in the heat map, and losses in percent; an
    # unknown loss is drawn as 0.
    failures = by_failure(outages, objective)[:_MAX_FAILURES]
    row_of_failure = {failure.failure: position for position, failure in enumerate(failures)}
    column_of_matrix = {
        index: position
        for position, index in enumerate(dict.fromkeys(outage.index for outage in outages))
    }
    time_of_matrix = {outage.index: outage.timestamp for outage in outages}
    loss_percent = np.zeros((len(row_of_failure), len(column_of_matrix)))
    for outage in outages:
        if outage.failure in row_of_failure:
            cell = row_of_failure[outage.failure], column_of_matrix[outage.index]
            loss_percent[cell] = 100 * np.nan_to_num(loss(outage, objective))
    # A row takes 0.26 inches; title and axis labels take 1.6.
    figure = Figure(figsize=(11, 1.6 + 0.26 * len(row_of_failure)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    heat_map = axes.imshow(
        loss_percent, aspect="auto", interpolation="nearest", cmap="magma_r", vmin=0
    )
    axes.set_yticks(range(len(row_of_failure)), list(row_of_failure), fontsize="small")
    # Label up to seven columns, evenly spread, with the times of their matrices.
    tick_columns = np.unique(
        np.linspace(0, len(column_of_matrix) - 1, 7).round().astype(int)
    ).tolist()
    matrix_indices = list(column_of_matrix)
    axes.set_xticks(
        tick_columns,
        [time_of_matrix[matrix_indices[i]].replace("T", "\n") for i in tick_columns],
        fontsize="small",
    )
    figure.colorbar(heat_map, ax=axes, label=f"{objective.rules.loss_label} (%)", pad=0.01)
    axes.set_title(
        f"the {len(row_of_failure)} worst failures, over {len(column_of_matrix)} matrices",
        fontsize="medium",
    )
    figure.savefig(path, dpi=140)


def plan_findings(report: PlanReport) -> list[str]:
    """Return sentences that sum up the result of a failure study.

    They are about failures with a loss, the worst failure, stranded demand, full links, and
    failures whose loss is uncertain.
    """
    ranked_failures = report.by_failure()
    matrices = _count(len({outage.index for outage in report.outages}), "matrix", "matrices")
    if not ranked_failures:
        return [f"No failure was solved, over {matrices}."]
    # Failures with a loss.
    costly_failures = [
        failure
        for failure in ranked_failures
        if failure.worst > 0 or failure.stranded > _MIN_STRANDED
    ]
    sentences = [
        f"{len(costly_failures):,} of {len(ranked_failures):,} failures cause a certain loss, "
        f"over {matrices}."
        if costly_failures
        else f"No failure causes a certain loss, over {matrices}."
    ]
    # Failures that leave too little capacity, and the worst of the others.
    infeasible_names = [
        failure.failure for failure in ranked_failures if not math.isfinite(failure.worst)
    ]
    if infeasible_names:
        sentences.append(
            f"{_count(len(infeasible_names), 'failure leaves', 'failures leave')} too little "
            f"capacity for all demand: {', '.join(infeasible_names)}."
        )
    feasible_failures = [failure for failure in ranked_failures if math.isfinite(failure.worst)]
    worst = max(feasible_failures, key=lambda failure: failure.worst, default=ranked_failures[0])
    if worst.worst > 0:
        label = report.objective.rules.loss_label
        sentences.append(
            f"The worst failure is {worst.failure} ({worst.kind}), at {minute(worst.worst_at)}: "
            f"{label} at least {percent_at_least(worst.worst, 2)} and at most "
            f"{percent_at_most(worst.worst_at_most, 2)}."
        )
    # Demand without a path, and links at their capacity.
    sentences += [_stranding_sentence(ranked_failures), _utilisation_sentence(report)]
    # Failures whose loss may be 0: the certain loss is at most 0, the possible one above 0.1%.
    num_uncertain = sum(
        failure.worst <= 0 < failure.worst_at_most - 1e-3 for failure in ranked_failures
    )
    if num_uncertain:
        sentences.append(
            f"{_count(num_uncertain, 'failure has', 'failures have')} an uncertain loss, which may "
            "be 0; a smaller --gap narrows it."
        )
    return sentences


def _stranding_sentence(ranked: Sequence[FailureLoss]) -> str:
    """Return a sentence about the demand that failures leave without a path.

    Args:
        ranked: loss of each failure.
    """
    stranding = max(ranked, key=lambda failure: failure.stranded)
    num_stranding = sum(failure.stranded > _MIN_STRANDED for failure in ranked)
    return (
        f"{_count(num_stranding, 'failure leaves', 'failures leave')} demand without a path; most "
        f"of all {stranding.failure}, {percent(stranding.stranded)} of the demand on average."
        if stranding.stranded > _MIN_STRANDED
        else "Every demand keeps a path under every failure."
    )


def _utilisation_sentence(report: PlanReport) -> str:
    """Return a sentence about the fullest links.

    It states the number of full links if demand may be shed, else the fullest link.
    """
    fullest_link = report.links()[0]
    if report.objective.may_shed:
        num_full = int(np.count_nonzero(report.fullest.utilisation >= 1 - 1e-6))
        return (
            f"{_count(num_full, 'link is', 'links are')} full in some case: this objective fills "
            "links before it sheds demand."
        )
    case = f"when {fullest_link.failure} fails" if fullest_link.failure else "without failure"
    return (
        f"The fullest link is {fullest_link.link}: "
        f"{percent(fullest_link.failed_utilisation)} {case}, at "
        f"{minute(fullest_link.timestamp)} ({percent(fullest_link.utilisation)} at most without "
        "failure)."
    )


def _count(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun in the right form, such as "1 matrix" or "2,000 matrices"."""
    return f"{number:,} {singular if number == 1 else plural}"


def write_plan_page(path: Path, report: PlanReport) -> None:
    """Write the HTML page of a failure study.

    It has findings, a table of failures, charts, a map of utilisations and losses, and a table of
    links.
    """
    introduction = (
        "Every failure under every matrix, with splits optimised again.  The loss of a failure "
        "lies between two limits, from the certified bounds of the solutions with and without it: "
        "a certain loss, and a largest possible loss."
    )
    write_page(
        path,
        f"Losses by failures on {report.topology.name}",
        introduction,
        [_failure_section(report), _link_section(report)],
    )


def _failure_section(report: PlanReport) -> Section:
    """Return the page's section with findings, the table of failures, charts and the map."""
    topology = report.topology
    objective = report.objective
    num_matrices = len({outage.index for outage in report.outages})
    facts = (
        f"{topology.num_nodes} nodes, {len(topology.cables())} cables, {num_matrices:,} matrices, "
        f"objective {objective.name}"
    )
    return Section(
        title=topology.name,
        facts=facts,
        traffic=report.traffic.name,
        findings=plan_findings(report),
        table=Table(
            "", _failure_columns(objective, "failure", Column("kind", "kind")), report.by_failure()
        ),
        charts=_charts(report),
        map=_map(report),
        case_label="Show",
        scheme_label="Of",
    )


def _link_section(report: PlanReport) -> Section:
    """Return the page's section with the table of links and their largest utilisation."""
    return Section(
        title=f"{report.topology.name}: links",
        facts="largest utilisation of each link, with its failure and time",
        traffic=report.traffic.name,
        table=Table(
            "",
            (
                Column("link", "link"),
                Column("capacity, Gbit/s", "capacity", digits(6)),
                Column("without failure", "utilisation", percent, most_is_best=True),
                Column("in the worst case", "failed_utilisation", percent, most_is_best=True),
                Column("when this fails", lambda failure: failure.failure or "nothing"),
                Column("at", lambda failure: minute(failure.timestamp)),
            ),
            report.links(),
        ),
    )


def _map(report: PlanReport) -> dict[str, Any]:
    """Return the data of the page's map, which colours links in up to three cases.

    The cases are the largest utilisation without failure, the largest one under any failure, and
    the loss of each cable's failure over the largest of these losses.
    """
    topology = report.topology
    loss_by_cable = {
        failure_loss.failure: max(failure_loss.worst, failure_loss.stranded, 0.0)
        for failure_loss in report.by_failure()
        if failure_loss.kind == "cable"
    }
    max_loss = max(loss_by_cable.values(), default=0.0)
    cases = {
        "largest utilisation without failure": np.maximum(report.normal.utilisation, 0),
        "largest utilisation under any failure": np.maximum(report.fullest.utilisation, 0),
    }
    # Losses relative to the largest one; a cable's loss is drawn on all of its links.
    if max_loss > 0:
        link_loss = np.zeros(topology.num_links)
        for failure in cable_failures(topology):
            link_loss[list(failure.links)] = loss_by_cable.get(failure.name, 0.0) / max_loss
        cases["loss of each cable's failure, over the largest loss"] = link_loss
    return utilisation_map(
        drawing_of(topology),
        {case: {"all matrices": link_values} for case, link_values in cases.items()},
    )


def _charts(report: PlanReport) -> tuple[Chart, ...]:
    """Return the page's charts: losses of the worst failures and, for several times, over time."""
    worst_failures = report.by_failure()[:_MAX_FAILURES]
    if not worst_failures:
        return ()
    # Certain losses of all failures at each time.
    losses_at: dict[str, list[float]] = {}
    for outage in report.outages:
        if outage.failure:
            losses_at.setdefault(outage.timestamp, []).append(loss(outage, report.objective))
    label = f"{report.objective.rules.loss_label}, %"
    charts = [_chart_by_failure(worst_failures, label)]
    if len(losses_at) > 1:
        charts.append(_chart_by_time(losses_at, label))
    return tuple(charts)


def _chart_by_failure(worst: Sequence[FailureLoss], label: str) -> Chart:
    """Return a chart of the certain and the largest possible loss of the worst failures.

    Args:
        worst: losses of these failures, as shares.
        label: label of the loss axis, in percent.
    """
    names = [failure.failure for failure in worst]
    return Chart(
        "by_failure",
        "Losses by failure",
        f"The {len(worst)} worst failures, each under its worst matrix: certain and largest "
        "possible loss.",
        "failure",
        label,
        (
            Series("at most", "points", names, [100 * failure.worst_at_most for failure in worst]),
            Series(
                "certainly", "points", names, [100 * max(0.0, failure.worst) for failure in worst]
            ),
        ),
        x_scale="category",
    )


def _chart_by_time(losses_at: dict[str, list[float]], label: str) -> Chart:
    """Return a chart of the largest and the mean certain loss of failures by time.

    Args:
        losses_at: certain losses of all failures as shares, by time.
        label: label of the loss axis, in percent.
    """
    times = sorted(losses_at)
    return Chart(
        "by_time",
        "Losses over time",
        "Largest certain loss of a failure, and mean over all failures, at each time.",
        "time",
        label,
        (
            Series(
                "worst failure",
                "line",
                times,
                [100 * float(np.nanmax(losses_at[time])) for time in times],
            ),
            Series(
                "mean", "line", times, [100 * float(np.nanmean(losses_at[time])) for time in times]
            ),
        ),
        x_scale="time",
    )


class FailurePlan(PlanReport):
    """Result of a failure study that converts itself to a data frame, a plot, a page and files."""

    def __repr__(self) -> str:
        """Return the sentences about the result, one per line."""
        return "\n".join(plan_findings(self))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each failure, the worst failure first."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(failure) for failure in self.by_failure()])

    def plot(self, path: Path | str) -> None:
        """Write the heat map of the certain losses, by failure and time, to an image file."""
        plot_plan(Path(path), self.outages, self.objective)

    def save_page(self, path: Path | str) -> None:
        """Write the HTML page of the study to a file, as ``teal plan`` does."""
        write_plan_page(Path(path), self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write tables, plot and page to a folder, as ``teal plan`` does.

        Raises:
            InputError: the folder has results, and ``overwrite`` is false.
        """
        names = [name for name in FILES if name != MANIFEST]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        write_files(Path(folder), plan_files(self))


def plan_files(report: PlanReport) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write the files of a failure study, by file name.

    Each of them gets the path of its file.
    """
    return {
        TABLE: partial(write_csv, rows=report.outages),
        PARQUET: partial(write_parquet, rows=report.outages),
        PLOT: partial(plot_plan, outages=report.outages, objective=report.objective),
        LINKS: partial(write_csv, rows=report.links()),
        PAGE: partial(write_plan_page, report=report),
    }


FILES = TABLE, PARQUET, MANIFEST, PLOT, PAGE, LINKS = (
    "failures.csv",
    "failures.parquet",
    "manifest.json",
    "failures.png",
    "report.html",
    "links.csv",
)


def run_plan(config: PlanConfig, notify: Callable[[str], None]) -> PlanReport:
    """Run the failure study of `teal plan`, and write all files.

    An interrupted run leaves its journal, from which a run with --resume continues.

    Args:
        config: settings of the command.
        notify: receives messages for the user.

    Raises:
        InputError: invalid settings, or results in the output folder without --overwrite.
    """
    out = config.out
    if not config.resume:
        check_out_folder(out, (JOURNAL, *FILES), overwrite=config.overwrite, hint=RESUME_HINT)
    instance = load_instance(config, notify)
    journal = Journal(out / JOURNAL, config, resume=config.resume)
    report = plan(instance, config, journal, notify)
    write_files(out, {**plan_files(report), MANIFEST: partial(write_manifest, settings=config)})
    journal.remove()
    return report


def plan_outcome(config: PlanConfig, notify: Notify) -> Outcome:
    """Run `teal plan`, and return its printed text, tables and JSON data.

    Args:
        config: settings of the command.
        notify: receives messages for the user.
    """
    report = run_plan(config, notify)
    findings = plan_findings(report)
    file_names = ", ".join(name for name in FILES if name != PAGE)
    return Outcome(
        text="\n".join(findings),
        tables=failure_tables(report.outages, config.worst, report.objective),
        written=(
            f"{config.out / PAGE} (open it in a browser), and {file_names} with "
            f"{len(report.outages):,} cases"
        ),
        data=lambda: {
            "findings": findings,
            "failures": report.by_failure(),
            "links": report.links(),
        },
    )
