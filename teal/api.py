"""Commands as functions of Python: networks and traffic as files, names or objects; results with frames.

>>> teal.upgrade("b4", "gravity:seed=0,count=6,load=0.8", growth=1.5, matrices=3).to_frame()
>>> teal.plan(topology, traffic, objective="max_link_utilisation").to_frame()
>>> teal.simulate(topology, traffic, failures=("cables",)).to_json()
>>> teal.evaluate(topology, traffic, scheme=("pdhg", "lp-all"), limit=3)

Settings have the names of the command's options, with _ for -; the same faults are refused with the same messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from teal.app.run_files import typed
from teal.errors import InputError
from teal.evaluation.evaluate_command import EvaluationStudy
from teal.evaluation.next_interval_command import run_next_interval
from teal.evaluation.settings import EvaluateConfig
from teal.formats import load_topology, load_traffic, save_topology, save_traffic
from teal.learning.settings import TrainConfig
from teal.learning.train_command import run_train
from teal.network import Topology, TrafficMatrices
from teal.objectives import Objective
from teal.planning.plan import PlanReport
from teal.planning.plan_command import plot_plan, run_plan, write_plan_page
from teal.planning.settings import PlanConfig, UpgradeConfig
from teal.planning.upgrade.result import UpgradePlan
from teal.planning.upgrade.search import plan_upgrade
from teal.routing.settings import SimulateConfig
from teal.routing.simulate import Simulation
from teal.routing.simulate_command import run_simulate

_Config = TypeVar("_Config")


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


def upgrade(topology: Any, traffic: Any, **settings: Any) -> UpgradePlan:
    """Find what to buy; ``teal upgrade --help`` lists the settings.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        settings: settings of the command.

    Raises:
        InputError: a fault in the input.
        SolverError: no purchase was found in time.
    """
    with _files(topology, traffic) as names:
        return plan_upgrade(_settings(UpgradeConfig, *names, settings), _nobody)


def plan(topology: Any, traffic: Any, **settings: Any) -> FailurePlan:
    """Measure what failures cost; ``teal plan --help`` lists the settings, :func:`upgrade` the arguments."""
    with _files(topology, traffic) as names, tempfile.TemporaryDirectory() as folder:
        config = _settings(PlanConfig, *names, {"out": Path(folder) / "plan", **settings})
        return FailurePlan(**vars(run_plan(config, _nobody)))


def simulate(topology: Any, traffic: Any, **settings: Any) -> Simulation:
    """Loads of the IGP; see ``teal simulate --help`` for the settings, and :func:`upgrade` for the arguments."""
    with _files(topology, traffic) as names:
        return run_simulate(_settings(SimulateConfig, *names, settings), _nobody)


def evaluate(topology: Any, traffic: Any, **settings: Any) -> Any:
    """Schemes on the same matrices: a pandas frame, a row for each scheme and case, as in results.csv.

    See ``teal evaluate --help`` for the settings (with ``out=`` the report is kept), and :func:`upgrade` for the
    arguments.
    """
    import pandas as pd

    with _files(topology, traffic) as (network, matrices), tempfile.TemporaryDirectory() as folder:
        settings = {"out": Path(folder) / "evaluate", **settings}
        config = _settings(EvaluateConfig, (network,), (matrices,), settings)
        return pd.DataFrame([vars(row) for row in EvaluationStudy(config, _nobody).run().rows])


def train(topology: Any, traffic: Any, out: Path | str, **settings: Any) -> Path:
    """Train a model on one network: its folder, which ``teal.make_scheme("teal", out)`` takes.

    See ``teal train --help`` for the settings, and :func:`upgrade` for the arguments.
    """
    with _files(topology, traffic) as names:
        run_train(_settings(TrainConfig, *names, {"out": Path(out), **settings}), _nobody)
    return Path(out)


def next_interval(topology: Any, traffic: Any, **settings: Any) -> Any:
    """Hedges over consecutive intervals: a pandas frame, a row for each, as in next_interval_summary.csv.

    See ``teal evaluate --help`` for the settings (``scheme`` names hedges), and :func:`upgrade` for the arguments.
    """
    import pandas as pd

    with _files(topology, traffic) as (network, matrices), tempfile.TemporaryDirectory() as folder:
        settings = {"out": Path(folder) / "next_interval", "next_interval": True, **settings}
        config = _settings(EvaluateConfig, (network,), (matrices,), settings)
        return pd.DataFrame([dataclasses.asdict(one) for one in run_next_interval(config, _nobody)])


@contextlib.contextmanager
def _files(topology: Any, traffic: Any) -> Iterator[tuple[str, str]]:
    """Names of files of the network and the traffic, which exist as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        network = topology if isinstance(topology, Topology) else None
        if network is None and not isinstance(topology, str | Path):
            network = load_topology(topology)
        matrices = traffic if isinstance(traffic, TrafficMatrices) else None
        if matrices is None and not isinstance(traffic, str | Path):
            matrices = load_traffic(traffic, network if network is not None else load_topology(str(topology)))
        if network is not None:
            topology = Path(folder) / "topology.json"
            save_topology(topology, network)
        if matrices is not None:
            known = network if network is not None else load_topology(str(topology))
            traffic = Path(folder) / ("traffic.npz" if matrices.classes is None else "traffic.parquet")
            save_traffic(traffic, matrices, known, exact=True)
        yield str(topology), str(traffic)


def _settings(kind: type[_Config], topology: Any, traffic: Any, settings: dict[str, Any]) -> _Config:
    """The settings of a command; a name that it does not have is refused with those that it has.

    Paths may be texts, names of an enumeration too, and one value may stand where several are taken.
    """
    hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {"topology": topology, "traffic": traffic}
    for name, value in settings.items():
        if name not in names:
            raise InputError(kind.__name__, name, "one of " + ", ".join(sorted(names)), repr(value))
        try:
            # An objective may also be one that was registered.
            values[name] = Objective(value).spec if name == "objective" else typed(hints[name], value)
        except (TypeError, ValueError) as error:
            raise InputError(f"--{name.replace('_', '-')}", "", "a value of this setting", str(error)) from None
    make: Callable[..., _Config] = kind
    return make(**values)


def _nobody(_: str) -> None:
    """Progress that nobody reads."""
