"""`teal next-interval` as a function of Python; see :mod:`teal.api`."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from teal.app.as_files import files_of, nobody, settings_of
from teal_next.command import run_next_interval
from teal_next.settings import NextIntervalConfig


def next_interval(topology: Any, traffic: Any, **settings: Any) -> Any:
    """Hedges over consecutive intervals: a pandas frame, a row for each, as in
    next_interval_summary.csv.

    See ``teal next-interval --help`` for the settings (``scheme`` names hedges), and
    :func:`teal.evaluate` for the arguments.
    """
    import pandas as pd

    with (
        files_of(topology, traffic) as (network, matrices),
        tempfile.TemporaryDirectory() as folder,
    ):
        settings = {"out": Path(folder) / "next_interval", **settings}
        config = settings_of(NextIntervalConfig, (network,), (matrices,), settings)
        return pd.DataFrame([dataclasses.asdict(one) for one in run_next_interval(config, nobody)])
