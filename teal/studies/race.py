"""All that one ``teal evaluate --race`` does."""

from __future__ import annotations

from collections.abc import Callable

from teal.config import EvaluateConfig
from teal.errors import InputError
from teal.instance import load_instance
from teal.network.traffic import spread
from teal.race import Lap, race
from teal.reports.race import plot_race
from teal.reports.results import write_csv, write_manifest
from teal.schemes import Follower, make_scheme
from teal.storage import atomic_file, check_out_folder
from teal.studies.evaluate import default_schemes, rows_of

FILES = ("race.csv", "manifest.json", "race.png")
_MATRICES = 3  # where nobody says how many


def run_race(config: EvaluateConfig, say: Callable[[str], None]) -> list[Lap]:
    """Race on every network, then write everything.

    Raises:
        InputError: a fault in the settings, or results in OUT that nobody allowed to replace.
    """
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    models = config.models()
    schemes = [{n: make_scheme(n, model) for n in config.scheme or default_schemes(model)} for model in models]
    for name in (name for each in schemes for name, scheme in each.items() if isinstance(scheme, Follower)):
        raise InputError(name, "", "a scheme that starts from nothing: --race has warm PDHG of its own", "a warm one")
    laps = []
    for number, each in enumerate(config.instances()):
        instance = load_instance(each, say)
        rows = spread(rows_of(instance, config.split), config.limit or _MATRICES)
        laps += race(instance, schemes[number], rows.tolist(), seed=config.seed, say=say)
    table, manifest, plot = (config.out / name for name in FILES)
    with atomic_file(table) as temporary:
        write_csv(temporary, laps)
    with atomic_file(manifest) as temporary:
        write_manifest(temporary, config)
    with atomic_file(plot) as temporary:
        plot_race(temporary, laps)
    return laps
