"""What a request wants of its matrices: an objective, and perhaps classes or a limit on churn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from teal.network import PathSet, Topology
from teal.network.classes import DemandClasses, class_paths, latency_limits, within_limit
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.churn import ChurnLimit
from teal.runtime.arrays import FloatArray, IntArray
from teal.serving.errors import wrong
from teal.serving.requests import Options


@dataclasses.dataclass(frozen=True)
class Program:
    """What a request wants.  Requests with equal programs are solved together.

    Attributes:
        objective: of the matrices.
        limits: of each class of demands the largest latency of a path, ms, infinite for none; () without classes.
        churn: limit on what moves, from splits (1, D, K) in force; None for none.
    """

    objective: ObjectiveName
    limits: tuple[float, ...] = ()
    churn: ChurnLimit | None = None

    @property
    def network(self) -> Program:
        """What decides rows and paths: the same without the limit on what moves."""
        return dataclasses.replace(self, churn=None)

    @property
    def is_resumable(self) -> bool:
        """Whether a search can go on from the state in which an earlier one ended."""
        return not self.limits


def program_of(options: Options, usual: str, previous: FloatArray | None) -> Program:
    """The program of a request.

    Args:
        options: that were sent.
        usual: objective of the network.
        previous: (D, K) splits in force; None if the request names none.

    Raises:
        ServiceError: options that do not go together.
    """
    limits = tuple(latency_limits(options.classes, options.latency_limits_ms)) if options.classes else ()
    if (options.max_churn is None) != (previous is None):
        raise wrong("max_churn: goes with the parameter previous of the address, the id of the answer in force")
    objective = options.objective_name(usual)
    churn = None
    if previous is not None and options.max_churn is not None:
        if limits or not Objective(objective).maximises_value:
            raise wrong("max_churn: not with classes, nor with an objective that must carry all demand")
        churn = ChurnLimit(torch.from_numpy(previous)[None], options.max_churn)
    return Program(objective, limits, churn)


def without_demand(topology: Topology, paths: PathSet, program: Program) -> Problem:
    """The network of a program, B = 1; demands of classes class by class, each over all pairs of ``paths``."""
    count = max(1, len(program.limits))
    none = np.zeros((1, count * paths.num_demands))
    if not program.limits:
        return Problem.create(topology, paths, Objective(program.objective), none)
    names = [str(number) for number in range(count)]
    classes = DemandClasses.of_equal_size(names, paths.num_demands)
    pairs = np.tile(paths.pairs, (count, 1))
    own = class_paths(paths, topology, pairs, classes, dict(zip(names, program.limits, strict=True)))
    return Problem.create(topology, own, Objective(program.objective), none, classes=classes)


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


def named_lines(lines: tuple[dict[str, Any], ...], names: Sequence[str]) -> list[dict[str, Any]]:
    """:class:`teal.serving.responses.ClassAnswer` of each class, with the names of a request."""
    return [{**line, "class": name} for line, name in zip(lines, names, strict=True)]
