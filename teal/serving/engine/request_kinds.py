"""Requests of every kind that the service accepts, derived from its request models.

The warm-up solves them (:mod:`teal.serving.engine.warm_up`), so that the kernels which a wheel
brings and a service loads are those that requests reach; tests send them.  Words of an option are
read from its field, objectives from their registry; numbers and structures have examples here.  A
field without examples raises LookupError: whoever adds an option adds them.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from teal.objectives import Objective, ObjectiveName, objective_names
from teal.problem.offers import OFFERS
from teal.serving.engine.requests import AllocationRequest

# Matrices of a request: one, as many as fill each width of the engine's kernels, and more than one
# part of a batch.
MATRICES = (1, 2, 12, 20)
_CLASSES = ["gold", "bronze"]
_OF_PROGRAM = ("objective", "classes", "latency_limits_ms")  # fields that choose the program
_OF_PROBLEM = ("gap", *OFFERS)  # fields that choose its precision, or change its columns and rows
_OF_MATRICES = ("demands", "rates")  # fields that hold the traffic, which callers fill in
_OF_NEXT_INTERVAL = "for"
# Examples of the fields whose values are no words, by model and name as it is sent.
_EXAMPLES: dict[str, dict[str, tuple[Any, ...]]] = {
    "AllocationRequest": {
        "demands": (),
        "rates": (),
        "gap": (1e-6,),  # double precision; usual ones are of single precision
        "deadline_ms": (1.0,),
        "classes": (_CLASSES,),
        "latency_limits_ms": ({_CLASSES[0]: 30.0},),
        "entries": (8,),
        "prove": (True,),
        "max_churn": (0.3,),
    },
    "NetworkSpec": {
        "topology": (),
        "num_paths": (3, "auto"),
        "max_paths": (6,),
        "gap": (0.02,),
        "groups": (),
        "weights": (),
        "functions": (),
    },
}
# Options of objectives whose programs differ from those without options.
_OF_OBJECTIVES = {
    ObjectiveName.ALPHA_FAIR: ("alpha=0", "alpha=0.5,weight=1", "alpha=2,weight=given"),
    ObjectiveName.PROPORTIONAL_FAIR: ("weight=given",),
    ObjectiveName.LEAST_COST: ("cost=hops", "max_utilisation=0.5"),
}


class AllocationKind(NamedTuple):
    """A kind of allocation request.

    Attributes:
        options: fields of :class:`AllocationRequest` but the traffic.
        matrices: number of matrices.
        needs_previous: whether it goes with the id of an answer to the same program.
    """

    options: dict[str, Any]
    matrices: int = 1
    needs_previous: bool = False

    @property
    def num_classes(self) -> int:
        """Number of classes of demands."""
        return len(self.options.get("classes", ())) or 1

    @property
    def has_own_problem(self) -> bool:
        """Whether its problem differs from that of every other kind in more than the number of
        matrices.
        """
        return self.matrices == 1 and set(self.options) <= {*_OF_PROGRAM, *_OF_PROBLEM}

    @property
    def has_own_kernels(self) -> bool:
        """Whether it may reach kernels that no other kind reaches.  Options that do not change the
        problem count with one program alone: their kernels do not depend on the program.
        """
        is_of_first_program = self.options.get("objective") == objectives()[0]
        return self.has_own_problem or (self.matrices == 1 and is_of_first_program)


def objectives() -> tuple[str, ...]:
    """Every objective that a request may name, alone and with options."""
    names = [str(name) for name in objective_names() if name != ObjectiveName.PRIORITY]
    with_options = (
        f"{name}:{options}" for name, listed in _OF_OBJECTIVES.items() for options in listed
    )
    return (*names, *with_options)


def examples(model: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """Examples of each field of a model, by the name by which the field is sent.

    Raises:
        LookupError: a field that has neither words nor examples.
    """
    known = _EXAMPLES.get(model.__name__, {})
    found: dict[str, tuple[Any, ...]] = {}
    for field, info in model.model_fields.items():
        name = str(info.alias or field)
        values = known.get(name, words_of(info.annotation))
        if name == "objective":
            values = objectives()
        if not values and name not in known:
            raise LookupError(
                f"{model.__name__}.{field}: expected examples in {__name__} of a field without "
                "words, so that the kernels of its requests are compiled ahead"
            )
        found[name] = values
    return found


def words_of(annotation: Any) -> tuple[Any, ...]:
    """The words that an annotation allows, of literals and enumerations anywhere in it."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(one.value for one in annotation)
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    inner = (words_of(one) for one in typing.get_args(annotation))
    return tuple(itertools.chain.from_iterable(inner))


def programs() -> Iterator[dict[str, Any]]:
    """Options that choose the program: objectives, classes, and classes with limits or a cost."""
    values = examples(AllocationRequest)
    for objective in values["objective"]:
        yield {"objective": objective}
    for classes in values["classes"]:
        yield {"classes": classes}
        yield from (
            {"classes": classes, "latency_limits_ms": limits}
            for limits in values["latency_limits_ms"]
        )
        for objective in values["objective"]:
            if Objective.of(objective).rules.may_have_no_allocation:
                yield {"classes": classes, "objective": objective}


def allocation_kinds() -> Iterator[AllocationKind]:
    """Every program alone, with every value of every other option, and in batches.

    Some of them the service refuses: options that do not go together.
    """
    values = examples(AllocationRequest)
    not_others = (*_OF_PROGRAM, *_OF_MATRICES, _OF_NEXT_INTERVAL)
    others = [name for name in values if name not in not_others]
    needs_previous = {name for name, kind in OFFERS.items() if kind.needs_previous}
    for program in programs():
        for count in MATRICES:
            yield AllocationKind(program, count)
        for name in others:
            for value in values[name]:
                yield AllocationKind(
                    {**program, name: value}, needs_previous=name in needs_previous
                )
