"""What a request wants of its matrices: an objective, and perhaps classes, a limit on churn, or protection."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from teal.errors import InputError
from teal.network import PathSet, Topology
from teal.network.classes import DemandClasses, class_paths, latency_limits, within_limit
from teal.objectives import Objective, ObjectiveName
from teal.problem import FairFigures, Problem
from teal.problem.churn import ChurnLimit
from teal.problem.condition import Condition
from teal.problem.protection import MAX_PATHS, Protection
from teal.runtime.arrays import FloatArray, IntArray
from teal.serving.answer import plain
from teal.serving.errors import wrong
from teal.serving.requests import NetworkSpec, Options

# The least work for a fair, protected or calm allocation, in that for one without such wishes, until it is measured on
# the network; on GEANT, UsCarrier and Kdl it is 2 to 6.
_LEAST_WORK = 6.0
_MOST_PROTECTED = 100_000  # pairs of nodes: promises for more would take the engine, which has no fast form, minutes


@dataclasses.dataclass(frozen=True)
class Program:
    """What a request wants.  Requests with equal programs are solved together.

    Attributes:
        objective: of the matrices.
        limits: of each class of demands the largest latency of a path, ms, infinite for none; () without classes.
        churn: limit on what moves, from splits (1, D, K) in force; None for none.
        protect: what promises survive, ``cables`` or ``groups``; "" for flows that are no promises.
    """

    objective: ObjectiveName
    limits: tuple[float, ...] = ()
    churn: ChurnLimit | None = None
    protect: str = ""

    @property
    def network(self) -> Program:
        """What decides rows and paths: the same without the limit on what moves."""
        return dataclasses.replace(self, churn=None)

    @property
    def is_resumable(self) -> bool:
        """Whether a search can start from the splits and prices with which an earlier one ended."""
        return not (self.limits or self.protect or Objective(self.objective).is_sequence)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Programs of one kind take about the same time on a network."""
        is_fair = Objective(self.objective).is_fair
        return len(self.limits), bool(self.protect), is_fair, self.churn is not None

    @property
    def least_work(self) -> float:
        """The least work for a matrix, in that of a program without further wishes."""
        if self.limits:
            return float(len(self.limits))
        return _LEAST_WORK if not self.is_resumable or self.churn is not None else 1.0


def program_of(
    options: Options,
    spec: NetworkSpec,
    topology: Topology,
    paths: PathSet,
    protections: Mapping[str, Protection],
    previous: FloatArray | None,
) -> Program:
    """The program of a request.

    Args:
        options: that were sent.
        spec: of the network.
        topology, paths: of the network.
        protections: of the network, by :attr:`Program.protect`.
        previous: (D, K) splits in force, or those of each class; None if the request names none.

    Raises:
        ServiceError: options that do not go together.
    """
    limits = tuple(latency_limits(options.classes, options.latency_limits_ms)) if options.classes else ()
    if (options.max_churn is None) != (previous is None):
        raise wrong("max_churn: goes with the parameter previous of the address, the id of the answer in force")
    objective = options.objective_name(spec.objective)
    program, conditions = Program(objective, limits, protect=options.protect or ""), dict[str, Condition]()
    if options.protect:
        conditions["protect"] = _protection(program, spec, paths, protections)
    if previous is not None and options.max_churn is not None:
        if len(previous) != max(1, len(limits)) * paths.num_demands:
            raise wrong("previous: an answer with as many classes as this request")
        order = columns(topology, paths, program)
        own = torch.from_numpy(previous if order is None else np.take_along_axis(previous, order, axis=1))
        conditions["max_churn"] = churn = ChurnLimit(own[None], options.max_churn)
        program = dataclasses.replace(program, churn=churn)
    for name, condition in conditions.items():
        others = [other for other in conditions.values() if other is not condition]
        if expected := condition.refuses(Objective(objective), others):
            raise wrong(f"{name}: expected {expected}")
    return program


def single_program(objective: str) -> Program:
    """The program of an objective alone, and total_flow in place of a sequence of programs.

    For the next interval, since max_min needs demands that are known; and as the unit of :attr:`Program.least_work`.
    """
    name = ObjectiveName(objective)
    return Program(ObjectiveName.TOTAL_FLOW if Objective(name).is_sequence else name)


def _protection(
    program: Program, spec: NetworkSpec, paths: PathSet, protections: Mapping[str, Protection]
) -> Protection:
    """The promises of a network without classes.

    Raises:
        ServiceError: the network can make none, or a class has paths of its own.
    """
    if program.protect == "groups" and not spec.groups:
        raise wrong("protect: the network was registered without groups")
    if not may_protect(paths):
        raise wrong(f"protect: at most {MAX_PATHS} paths a demand (num_paths) and {_MOST_PROTECTED:,} pairs of nodes")
    if np.isfinite(program.limits).any():
        raise wrong("protect: not with latency_limits_ms")
    return protections[program.protect]


def may_protect(paths: PathSet) -> bool:
    """Whether promises can be made over these paths."""
    return paths.num_paths <= MAX_PATHS and paths.num_demands <= _MOST_PROTECTED


def groups_of(topology: Topology, spec: NetworkSpec) -> list[list[int]]:
    """Numbers of the links of each group of a network.

    Raises:
        ServiceError: a cable that the network does not have.
    """
    try:
        return [
            sorted({link for a, b in cables for link in topology.find_links(a, b)}) for cables in spec.groups.values()
        ]
    except InputError as error:
        raise wrong(f"groups: {str(error)[:200]}") from None


def without_demand(
    topology: Topology, paths: PathSet, program: Program, protections: Mapping[str, Protection]
) -> Problem:
    """The network of a program, B = 1; demands of classes class by class, each over all pairs of ``paths``.

    Args:
        topology: as registered.
        paths: over all pairs of nodes.
        program: of the request.
        protections: by :attr:`Program.protect`.
    """
    count = max(1, len(program.limits))
    none = np.zeros((1, count * paths.num_demands))
    classes, own = None, paths
    if program.limits:
        names = [str(number) for number in range(count)]
        classes = DemandClasses.of_equal_size(names, paths.num_demands)
        pairs = np.tile(paths.pairs, (count, 1))
        own = class_paths(paths, topology, pairs, classes, dict(zip(names, program.limits, strict=True)))
    problem = Problem.create(topology, own, Objective(program.objective), none, classes=classes)
    return problem.under(protections[program.protect].repeated(count)) if program.protect else problem


def columns(topology: Topology, paths: PathSet, program: Program) -> IntArray | None:
    """(C * D, K) number, in ``paths``, of the path of each split of a class; None where both are the same.

    A limit on latency leaves out paths, and moves the others to the front.
    """
    if all(np.isinf(limit) for limit in program.limits):
        return None
    order = [np.argsort(~within_limit(paths, topology, limit), axis=1, kind="stable") for limit in program.limits]
    return np.concatenate(order)


def in_columns(splits: torch.Tensor, order: IntArray | None) -> torch.Tensor:
    """(B, C * D, K) splits in the columns of the network's paths; see :func:`columns`."""
    if order is None:
        return splits
    index = torch.from_numpy(order).expand(splits.shape)
    return torch.zeros_like(splits).scatter_(2, index, splits)


def level_lines(figures: FairFigures, row: int) -> list[dict[str, Any]]:
    """:class:`teal.serving.responses.LevelAnswer` of each level of a matrix that holds much flow."""
    return [{**line, "growth": plain(line["growth"])} for line in figures.lines(row)]


def named_lines(lines: tuple[dict[str, Any], ...], names: Sequence[str]) -> list[dict[str, Any]]:
    """:class:`teal.serving.responses.ClassAnswer` of each class, with the names of a request."""
    return [{**line, "class": name} for line, name in zip(lines, names, strict=True)]
