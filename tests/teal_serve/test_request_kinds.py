"""Requests of every kind are derived from the request models: none is left out."""

from __future__ import annotations

from typing import Literal

import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from pydantic import BaseModel, Field

from teal.objectives import Objective, ObjectiveName
from teal.problem.offers import CONDITIONS_BY_OPTION
from teal_serve.engine.request_kinds import (
    AllocationKind,
    allocation_kinds,
    allowed_words,
    examples,
    programs,
)
from teal_serve.engine.requests import AllocationRequest, NetworkSpec
from teal_serve.engine.warm_up import _ThreeNodeNetwork


def _is_ours(objective: str) -> bool:
    """Whether an objective is none that another test registers."""
    return Objective.of(objective).name in set(ObjectiveName)


KINDS = [
    kind for kind in allocation_kinds() if _is_ours(kind.options.get("objective", "total_flow"))
]


def test_every_field_has_examples_and_a_new_one_must_get_some() -> None:
    for model in (AllocationRequest, NetworkSpec):
        assert len(examples(model)) == len(model.model_fields)

    class WithMore(AllocationRequest):
        urgency: float = 1.0

    WithMore.__name__ = AllocationRequest.__name__
    with pytest.raises(LookupError, match=r"AllocationRequest\.urgency: no examples"):
        examples(WithMore)


def test_words_are_those_of_the_field() -> None:
    class Words(BaseModel):
        one: Literal["a", "b"] | None = None
        other: list[Literal["c"]] = Field(default=[])

    assert examples(Words) == {"one": ("a", "b"), "other": ("c",)}
    assert allowed_words(float) == ()


def test_every_value_of_every_option_is_in_some_kind() -> None:
    sent = {(name, str(value)) for kind in KINDS for name, value in kind.options.items()}
    expected = {
        (name, str(value))
        for name, values in examples(AllocationRequest).items()
        for value in values
        if name != "for" and (name != "objective" or _is_ours(value))
    }
    assert sent == expected
    named = {program.get("objective", "").partition(":")[0] for program in programs()}
    assert {name for name in named - {""} if _is_ours(name)} == set(ObjectiveName) - {
        ObjectiveName.PRIORITY
    }
    assert set(CONDITIONS_BY_OPTION) <= {name for name, _ in sent}
    of_previous = {name for kind in KINDS if kind.needs_previous for name in kind.options}
    assert of_previous & set(CONDITIONS_BY_OPTION) == {
        n for n, kind in CONDITIONS_BY_OPTION.items() if kind.needs_previous
    }


def test_the_warm_up_reaches_every_option() -> None:
    """Each of them is accepted with some program, so that its kernels are called."""
    triangle, accepted = _ThreeNodeNetwork(), set()
    for kind in KINDS:
        if kind.has_distinct_kernels and triangle.solve(kind):
            accepted |= {(name, str(value)) for name, value in kind.options.items()}
    assert accepted == {(n, str(v)) for kind in KINDS for n, v in kind.options.items()}


def test_kinds_that_have_kernels_of_their_own_are_few() -> None:
    assert sum(kind.has_distinct_kernels for kind in KINDS) < len(KINDS) / 2
    assert AllocationKind({"classes": ["a", "b"]}).num_classes == 2
    assert AllocationKind({}).num_classes == 1
