"""`teal simulate`: the loads, and their files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from teal.config.simulate import SimulateConfig
from teal.evaluation.simulate import FailureLoad, Simulation, simulate, simulated_counters
from teal.formats.counters import save_counters
from teal.formats.rows import write_csv
from teal.reports.manifest import write_manifest
from teal.reports.simulate import write_simulation_page
from teal.runtime.storage import check_out_file, check_out_folder
from teal.studies.files import write_files

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


__all__ = ["FILES", "FailureLoad", "run_simulate"]
