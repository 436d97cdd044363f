"""`teal audit`: the search, and its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from teal.config import AuditConfig, seconds
from teal.errors import InputError
from teal.evaluation.audit import Audit, Generation, audit, demand_set
from teal.evaluation.instance import Instance, load_instance
from teal.formats import save_traffic
from teal.formats.rows import write_csv
from teal.network.rates import ArrayRates
from teal.reports.audit import plot_audit
from teal.reports.manifest import write_manifest
from teal.runtime.storage import check_out_folder
from teal.schemes import make_scheme
from teal.schemes.models import model_of_each
from teal.studies.files import write_files

FILES = WORST, LOSSES, PLOT, MANIFEST = ("worst.csv", "losses.csv", "losses.png", "manifest.json")


def run_audit(config: AuditConfig, notify: Callable[[str], None]) -> Audit:
    """Search, then write everything.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    instance = load_instance(config, notify)
    if instance.objective.rules.carries_all or instance.objective.rules.is_sequence:
        raise InputError("--objective", "", "one that maximises a value", instance.objective.name)
    given = model_of_each(config.scheme, config.model, notify)
    schemes = [make_scheme(scheme, given[scheme]) for scheme in config.scheme]

    def say(generation: Generation) -> None:
        notify(f"{generation.evaluations:,} matrices, {generation.elapsed_s:.0f} s: loses {100 * generation.loss:.2f}%")

    allowed = demand_set(instance, config.box, hose=config.hose, up_to=config.up_to)
    result = audit(
        instance, schemes, allowed, seconds(config.time_budget), config.seed,
        of_capacity=config.measure == "capacity", report=say,
    )  # fmt: skip
    write_files(
        config.out,
        {
            WORST: partial(_write_matrix, instance=instance, result=result),
            LOSSES: partial(write_csv, rows=result.generations),
            PLOT: partial(
                plot_audit, generations=result.generations, scheme=", ".join(config.scheme), measure=config.measure
            ),
            MANIFEST: partial(write_manifest, settings=config),
        },
    )
    return result


def _write_matrix(path: Path, instance: Instance, result: Audit) -> None:
    traffic = dataclasses.replace(
        instance.traffic, timestamps=instance.traffic.timestamps[:1], rates=ArrayRates(np.atleast_2d(result.demand)),
        scale=1.0, interval_s=0,
    )  # fmt: skip
    save_traffic(path, traffic, instance.topology)
