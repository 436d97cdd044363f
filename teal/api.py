"""Commands as functions of Python: networks and traffic as files, names or objects; results with
frames.

>>> teal.plan(topology, traffic, objective="max_link_utilisation").to_frame()
>>> teal.evaluate(topology, traffic, scheme=("pdhg", "lp-all"), limit=3)

Settings have the names of the command's options, with _ for -; the same faults are refused with the
same messages.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from teal.app.as_files import files_of, nobody, settings_of
from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal.app.run_files import MemoryEntries
from teal.evaluation.evaluate_command import EvaluationStudy
from teal.evaluation.settings import EvaluateConfig
from teal.learning.settings import TrainConfig
from teal.learning.train_command import run_train
from teal.planning import study
from teal.planning.plan_command import FailurePlan
from teal.planning.settings import PlanOptions


@with_options(PlanOptions)
def plan(topology: Any, traffic: Any, options: PlanOptions) -> FailurePlan:
    """Measure what failures cost; the options are those of ``teal plan``.  No file is written, and
    nothing is drawn.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: by name.

    Raises:
        InputError: a fault in the input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return FailurePlan(**vars(study.plan(instance, options, MemoryEntries())))


def evaluate(topology: Any, traffic: Any, **settings: Any) -> Any:
    """Schemes on the same matrices: a pandas frame, a row for each scheme and case, as in
    results.csv.

    See ``teal evaluate --help`` for the settings (with ``out=`` the report is kept), and
    :func:`plan` for the arguments.
    """
    import pandas as pd

    with (
        files_of(topology, traffic) as (network, matrices),
        tempfile.TemporaryDirectory() as folder,
    ):
        settings = {"out": Path(folder) / "evaluate", **settings}
        config = settings_of(EvaluateConfig, (network,), (matrices,), settings)
        return pd.DataFrame([vars(row) for row in EvaluationStudy(config, nobody).run().rows])


def train(topology: Any, traffic: Any, out: Path | str, **settings: Any) -> Path:
    """Train a model on one network: its folder, which ``teal.make_scheme("teal", out)`` takes.

    See ``teal train --help`` for the settings, and :func:`plan` for the arguments.
    """
    with files_of(topology, traffic) as names:
        run_train(settings_of(TrainConfig, *names, {"out": Path(out), **settings}), nobody)
    return Path(out)
