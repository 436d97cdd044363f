"""`teal evaluate --next-interval`: hedges over consecutive intervals of every network, and the files of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from tqdm import tqdm

from teal.config import EvaluateConfig, InstanceConfig
from teal.errors import InputError
from teal.evaluation.instance import Instance, load_instance, rows_of
from teal.evaluation.next_interval import NextInterval, NextRow, NextSummary, summarise
from teal.formats import load_traffic
from teal.formats.rows import write_csv
from teal.network import TrafficMatrices
from teal.network.rates import ArrayRates
from teal.reports.manifest import write_manifest
from teal.reports.next_interval import plot_next_interval, write_next_interval_report
from teal.runtime.storage import check_out_folder
from teal.schemes.hedges import make_hedge
from teal.schemes.hedges.mixture import Mixture
from teal.studies.evaluate import selection_text
from teal.studies.files import write_files

FILES = TABLE, SUMMARY, MANIFEST, PLOT, REPORT = (
    "next_interval.csv", "next_interval_summary.csv", "manifest.json", "next_interval.png", "report.html"
)  # fmt: skip
DEFAULT_HEDGES = ("mixture", "last", "peak", "saa12", "saa36", "saa144", "static")
# Intervals before the measured ones, in which hedges and their limits see what they would have seen.
_WARM_UP_INTERVALS = 100


def run_next_interval(config: EvaluateConfig, notify: Callable[[str], None]) -> list[NextSummary]:
    """Measure every hedge on every network, then write everything; an interruption writes the rows so far.

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
    config: EvaluateConfig,
    settings: InstanceConfig,
    model: Path | None,
    notify: Callable[[str], None],
    rows: list[NextRow],
    selections: dict[str, str],
) -> None:
    """Append the rows of a network to ``rows``, interval by interval, and note which matrices they are about."""
    instance = load_instance(settings, notify)
    hedges = {name: make_hedge(name, model) for name in config.scheme or DEFAULT_HEDGES}
    measured = rows_of(instance, config.split)
    measured = measured[: config.limit or None]
    measured = measured[measured >= config.lead]
    if not len(measured):
        raise InputError(settings.traffic, "", f"matrices after the first {config.lead}", instance.traffic.num_matrices)
    selections[instance.topology.name] = selection_text(len(measured), instance, config)
    known = _known(config, settings, instance) if config.known else None
    protocol = NextInterval(instance, hedges, lead=config.lead, lookback=config.lookback, known=known)
    with tqdm(total=len(measured), desc=instance.topology.name, unit="interval") as bar:
        for interval in protocol.run(measured.tolist(), _WARM_UP_INTERVALS):
            rows += interval
            bar.update()
    for hedge in hedges.values():
        if isinstance(hedge, Mixture):
            notify(f"{instance.topology.name}: {hedge.regret}")


def _known(config: EvaluateConfig, settings: InstanceConfig, instance: Instance) -> TrafficMatrices:
    """What schemes know: the matrices of --known over the demands and times of the traffic.

    Raises:
        InputError: other times, or demands that are missing.
    """
    known, traffic = load_traffic(config.known, instance.topology, unit=settings.traffic_unit), instance.traffic
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
        rates = known.read(slice(None))[:, [place[pair] for pair in map(tuple, traffic.pairs.tolist())]]
        known = dataclasses.replace(known, pairs=traffic.pairs, rates=ArrayRates(rates), scale=1.0)
    return known


def _write(config: EvaluateConfig, rows: list[NextRow], selections: dict[str, str]) -> None:
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
