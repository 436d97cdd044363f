"""Commands as functions of Python: networks and traffic as files, names or objects; results with frames.

>>> teal.plan(topology, traffic, objective="max_link_utilisation").to_frame()
>>> teal.evaluate(topology, traffic, scheme=("pdhg", "lp-all"), limit=3)

Settings have the names of the command's options, with _ for -; the same faults are refused with the same messages.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from teal.app.as_files import files_of, nobody, settings_of
from teal.evaluation.evaluate_command import EvaluationStudy
from teal.evaluation.settings import EvaluateConfig
from teal.learning.settings import TrainConfig
from teal.learning.train_command import run_train
from teal.planning.plan import PlanReport
from teal.planning.plan_command import plot_plan, run_plan, write_plan_page
from teal.planning.settings import PlanConfig


class FailurePlan(PlanReport):
    """The cost of failures: :class:`teal.planning.plan.PlanReport`, as a frame, a plot and a page."""

    def to_frame(self) -> Any:
        """A pandas frame, a row for each failure, the worst first."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in self.by_failure()])

    def plot(self, path: Path | str) -> None:
        """Write the heat map of what failures cost."""
        plot_plan(Path(path), self.outages, self.objective)

    def save_page(self, path: Path | str) -> None:
        """Write the page that ``teal plan`` writes."""
        write_plan_page(Path(path), self)


def plan(topology: Any, traffic: Any, **settings: Any) -> FailurePlan:
    """Measure what failures cost; ``teal plan --help`` lists the settings, :func:`evaluate` the arguments."""
    with files_of(topology, traffic) as names, tempfile.TemporaryDirectory() as folder:
        config = settings_of(PlanConfig, *names, {"out": Path(folder) / "plan", **settings})
        return FailurePlan(**vars(run_plan(config, nobody)))


def evaluate(topology: Any, traffic: Any, **settings: Any) -> Any:
    """Schemes on the same matrices: a pandas frame, a row for each scheme and case, as in results.csv.

    See ``teal evaluate --help`` for the settings (with ``out=`` the report is kept), and :func:`upgrade` for the
    arguments.
    """
    import pandas as pd

    with files_of(topology, traffic) as (network, matrices), tempfile.TemporaryDirectory() as folder:
        settings = {"out": Path(folder) / "evaluate", **settings}
        config = settings_of(EvaluateConfig, (network,), (matrices,), settings)
        return pd.DataFrame([vars(row) for row in EvaluationStudy(config, nobody).run().rows])


def train(topology: Any, traffic: Any, out: Path | str, **settings: Any) -> Path:
    """Train a model on one network: its folder, which ``teal.make_scheme("teal", out)`` takes.

    See ``teal train --help`` for the settings, and :func:`upgrade` for the arguments.
    """
    with files_of(topology, traffic) as names:
        run_train(settings_of(TrainConfig, *names, {"out": Path(out), **settings}), nobody)
    return Path(out)
