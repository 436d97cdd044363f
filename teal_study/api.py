"""Commands as Python functions, over networks and traffic from files, names or objects.

>>> teal.plan(topology, traffic, objective="max_link_utilisation").to_frame()
>>> teal.evaluate(topology, traffic, scheme=("pdhg", "lp-all"), limit=3).to_frame()

Keyword arguments have the names of the command's options, with _ for -, and are validated in the
same way.  Results have methods that return pandas frames.
"""

from __future__ import annotations

from typing import Any

from teal.app.instance import instance_of, load_network
from teal.app.options import with_options
from teal.app.run_files import MemoryEntries
from teal_study.evaluation import study as evaluation
from teal_study.evaluation.report import EvaluationReport
from teal_study.evaluation.settings import EvaluateOptions
from teal_study.learning import train_command as learning
from teal_study.learning.settings import TrainOptions
from teal_study.learning.train_command import TrainReport, check_start
from teal_study.planning import study
from teal_study.planning.plan_command import FailurePlan
from teal_study.planning.settings import PlanOptions


@with_options(PlanOptions)
def plan(topology: Any, traffic: Any, options: PlanOptions) -> FailurePlan:
    """Compute the loss of traffic under failures, as ``teal plan``, without writing files.

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
    """Compare schemes on the same matrices, as ``teal evaluate``, without writing files.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input.
    """
    instance = instance_of(*load_network(topology, traffic, options), options)
    return EvaluationReport(**vars(evaluation.evaluate(instance, options, MemoryEntries())))


@with_options(TrainOptions)
def train(topology: Any, traffic: Any, options: TrainOptions) -> TrainReport:
    """Train a model on one network, as ``teal train``; write the checkpoint, and the state from
    which training can be resumed, to the folder ``out``.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        traffic: TrafficMatrices, a pandas frame, a file or a name.
        options: keyword options of the command.

    Raises:
        InputError: invalid input, or an earlier run in ``out`` that must not be replaced.
    """
    check_start(options)
    instance = instance_of(*load_network(topology, traffic, options), options)
    return learning.train(instance, options)
