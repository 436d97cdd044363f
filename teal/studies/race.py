"""`teal evaluate --race`: the race on every network, and its files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from teal.config import EvaluateConfig
from teal.errors import InputError
from teal.evaluation.instance import load_instance, rows_of
from teal.evaluation.race import RaceRun, race
from teal.formats.rows import write_csv
from teal.network.traffic import spread
from teal.reports.manifest import write_manifest
from teal.reports.race import plot_race
from teal.runtime.storage import check_out_folder
from teal.schemes import Follower, make_scheme
from teal.schemes.models import model_of_each
from teal.studies.evaluate import DEFAULT_SCHEMES
from teal.studies.files import write_files

FILES = TABLE, MANIFEST, PLOT = ("race.csv", "manifest.json", "race.png")
_DEFAULT_MATRICES = 3  # of each network, where --limit is 0


def run_race(config: EvaluateConfig, notify: Callable[[str], None]) -> list[RaceRun]:
    """Race on every network, then write everything.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    models = config.models()
    names = config.scheme or DEFAULT_SCHEMES
    schemes = [{n: make_scheme(n, own) for n, own in model_of_each(names, model, notify).items()} for model in models]
    for name in (name for each in schemes for name, scheme in each.items() if isinstance(scheme, Follower)):
        raise InputError(name, "", "a scheme that starts from nothing: --race runs warm PDHG by itself", "a warm one")
    runs = []
    for number, instance_config in enumerate(config.instances()):
        instance = load_instance(instance_config, notify)
        rows = spread(rows_of(instance, config.split), config.limit or _DEFAULT_MATRICES)
        runs += race(instance, schemes[number], rows.tolist(), seed=config.seed, notify=notify)
    write_files(
        config.out,
        {
            TABLE: partial(write_csv, rows=runs),
            MANIFEST: partial(write_manifest, settings=config),
            PLOT: partial(plot_race, runs=runs),
        },
    )
    return runs
