"""Commands as functions of Python: networks and traffic as files, names or objects; results with
frames.

>>> teal.plan(topology, traffic, objective="max_link_utilisation").to_frame()
>>> teal.evaluate(topology, traffic, scheme=("pdhg", "lp-all"), limit=3).to_frame()

Settings have the names of the command's options, with _ for -; the same faults are refused with the
same messages.
"""

from __future__ import annotations

from typing import Any

from teal.allocation import allocate as allocation
from teal.allocation.allocate import AllocatedHistory
from teal.allocation.settings import AllocateOptions
from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal.app.run_files import MemoryEntries
from teal.evaluation import study as evaluation
from teal.evaluation.report import EvaluationReport
from teal.evaluation.settings import EvaluateOptions
from teal.learning import train_command as learning
from teal.learning.settings import TrainOptions
from teal.learning.train_command import TrainReport, check_start
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
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return FailurePlan(**vars(study.plan(instance, options, MemoryEntries())))


@with_options(EvaluateOptions)
def evaluate(topology: Any, traffic: Any, options: EvaluateOptions) -> EvaluationReport:
    """Compare schemes on the same matrices; the options are those of ``teal evaluate``.  No file is
    written, and nothing is drawn.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return EvaluationReport(**vars(evaluation.evaluate(instance, options, MemoryEntries())))


@with_options(AllocateOptions)
def allocate(topology: Any, traffic: Any, options: AllocateOptions) -> AllocatedHistory:
    """Allocate every matrix to a certified gap; the options are those of ``teal allocate``.  No
    file is written.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return allocation.allocate(instance, options)


@with_options(TrainOptions)
def train(topology: Any, traffic: Any, options: TrainOptions) -> TrainReport:
    """Train a model on one network; the options are those of ``teal train``.  The checkpoint, and
    the state from which training goes on, are written to ``out``.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input, or an earlier run in OUT that must not be replaced.
    """
    check_start(options)
    instance = instance_of(*load_network(topology, traffic, options), options)
    return learning.train(instance, options)
