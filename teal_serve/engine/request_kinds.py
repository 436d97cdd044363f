"""Enumeration of all kinds of requests that the service accepts, derived from the request models.

The warm-up solves a request of each kind (:mod:`teal_serve.engine.warm_up`), so that shipped and
loaded kernels cover every request; tests send them. The values of an option are the words that its
field allows, the registered objectives, or the examples in this module. A field without values
raises LookupError, so that new options get examples.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel

from teal.objectives import Objective, ObjectiveName, objective_names
from teal.problem.offers import CONDITIONS_BY_OPTION
from teal_serve.engine.requests import AllocationRequest

# Numbers of matrices: one; one batch of each width of the kernels; more than one batch.
BATCH_SIZES = (1, 2, 12, 20)
_CLASSES = ["gold", "bronze"]
# Fields that select the program.
_PROGRAM_FIELDS = ("objective", "classes", "latency_limits_ms")
# Fields that select the precision of the program, or change its columns and rows.
_PROBLEM_FIELDS = ("gap", *CONDITIONS_BY_OPTION)
# Fields of the traffic, which callers fill in.
_TRAFFIC_FIELDS = ("demands", "rates")
# Field of a request for the next interval.
_NEXT_INTERVAL_FIELD = "for"
# Example values of fields that have no list of allowed words: model -> name in requests -> values.
_EXAMPLES: dict[str, dict[str, tuple[Any, ...]]] = {
    "AllocationRequest": {
        "demands": (),
        "rates": (),
        # Double precision; default gaps need single precision.
        "gap": (1e-6,),
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
# Options of objectives that change the program.
_OBJECTIVE_OPTIONS = {
    ObjectiveName.ALPHA_FAIR: ("alpha=0", "alpha=0.5,weight=1", "alpha=2,weight=given"),
    ObjectiveName.PROPORTIONAL_FAIR: ("weight=given",),
    ObjectiveName.LEAST_COST: ("cost=hops", "max_utilisation=0.5"),
}


class AllocationKind(NamedTuple):
    """Kind of an allocation request.

    Attributes:
        options: fields of the request, without traffic.
        num_matrices: number of matrices.
        needs_previous: whether the request needs the id of an earlier answer to the same program.
    """

    options: dict[str, Any]
    num_matrices: int = 1
    needs_previous: bool = False

    @property
    def num_classes(self) -> int:
        """Number of demand classes of the request; 1 without classes."""
        return len(self.options.get("classes", ())) or 1

    @property
    def has_distinct_problem(self) -> bool:
        """Whether the problem differs from those of other kinds beyond the number of matrices."""
        return self.num_matrices == 1 and set(self.options) <= {*_PROGRAM_FIELDS, *_PROBLEM_FIELDS}

    @property
    def has_distinct_kernels(self) -> bool:
        """Whether this kind may call kernels that no other kind calls.

        The kernels of options that leave the problem unchanged do not depend on the program, so
        these options count for the first program only.
        """
        is_of_first_program = self.options.get("objective") == objectives()[0]
        return self.has_distinct_problem or (self.num_matrices == 1 and is_of_first_program)


def objectives() -> tuple[str, ...]:
    """Return every objective that a request may name, such as "least_cost:cost=hops"."""
    names = [str(name) for name in objective_names() if name != ObjectiveName.PRIORITY]
    with_options = (
        f"{name}:{options}"
        for name, options_of_name in _OBJECTIVE_OPTIONS.items()
        for options in options_of_name
    )
    return (*names, *with_options)


def examples(model: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """Return example values of each field of a request model, by the name in requests.

    Raises:
        LookupError: a field has neither allowed words nor examples.
    """
    model_examples = _EXAMPLES.get(model.__name__, {})
    values_by_field: dict[str, tuple[Any, ...]] = {}
    for field, info in model.model_fields.items():
        name = str(info.alias or field)
        values = model_examples.get(name, allowed_words(info.annotation))
        # Objectives are registered, not listed in the type of the field.
        if name == "objective":
            values = objectives()
        if not values and name not in model_examples:
            raise LookupError(
                f"{model.__name__}.{field}: no examples; add some to _EXAMPLES in {__name__}, so "
                "that the kernels of such requests are compiled ahead"
            )
        values_by_field[name] = values
    return values_by_field


def allowed_words(annotation: Any) -> tuple[Any, ...]:
    """Return the words that a type annotation allows: its literals and enumerations, nested too."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(member.value for member in annotation)
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    # Collect the words of nested types, such as the members of a union.
    inner = (allowed_words(member) for member in typing.get_args(annotation))
    return tuple(itertools.chain.from_iterable(inner))


def programs() -> Iterator[dict[str, Any]]:
    """Yield all combinations of options that select the program, as fields of a request.

    The combinations are each objective; classes; classes with latency limits; classes under
    least_cost.
    """
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
            if Objective.of(objective).rules.may_be_infeasible:
                yield {"classes": classes, "objective": objective}


def allocation_kinds() -> Iterator[AllocationKind]:
    """Yield all kinds of requests: every program, in each batch size, and with each other option.

    The service refuses the kinds whose options exclude each other.
    """
    values = examples(AllocationRequest)
    special_fields = (*_PROGRAM_FIELDS, *_TRAFFIC_FIELDS, _NEXT_INTERVAL_FIELD)
    other_fields = [name for name in values if name not in special_fields]
    options_needing_previous = {
        name
        for name, condition_type in CONDITIONS_BY_OPTION.items()
        if condition_type.needs_previous
    }
    for program in programs():
        for num_matrices in BATCH_SIZES:
            yield AllocationKind(program, num_matrices)
        for name in other_fields:
            for value in values[name]:
                yield AllocationKind(
                    {**program, name: value}, needs_previous=name in options_needing_previous
                )
