"""`teal upgrade`: the plan, and its files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from teal.config.upgrade import UpgradeConfig
from teal.evaluation.upgrade.result import Purchase, UpgradePlan
from teal.evaluation.upgrade.search import plan_upgrade
from teal.formats import save_topology
from teal.formats.rows import write_csv
from teal.reports.manifest import write_manifest
from teal.reports.upgrade import write_upgrade_page
from teal.runtime.storage import check_out_folder
from teal.studies.files import write_files

FILES = PAGE, PURCHASES, SCENARIOS, FORECAST, TOPOLOGY, MANIFEST = (
    "upgrade.html", "purchases.csv", "scenarios.csv", "forecast.csv", "topology.json", "manifest.json",
)  # fmt: skip


def run_upgrade(config: UpgradeConfig, notify: Callable[[str], None]) -> UpgradePlan:
    """Find what to buy, and write the files if there is a folder for them.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    plan = plan_upgrade(config, notify)
    if config.out is not None:
        nothing = [Purchase(source="", target="", capacity=0.0, bought=0.0, cost=0.0)]
        files: dict[str, Callable[[Path], None]] = {
            PURCHASES: partial(write_csv, rows=plan.purchases or nothing),
            SCENARIOS: partial(write_csv, rows=plan.scenarios),
            TOPOLOGY: partial(save_topology, topology=plan.upgraded),
            MANIFEST: partial(write_manifest, settings=config),
            PAGE: partial(write_upgrade_page, plan=plan),  # behind the tables, which must not be lost with it
        }
        if plan.forecasts:
            files[FORECAST] = partial(write_csv, rows=plan.forecasts)
        write_files(config.out, files)
    return plan
