"""Old public names against the new ones, and against the names that packages export."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import teal
from teal.deprecated import ATTRIBUTES, KEYWORDS, NAMES
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import threads_for
from teal.serving.engine.measured import MeasuredMatrices


@pytest.mark.parametrize(
    ("package", "old", "new"),
    [(package, old, new) for package, names in NAMES.items() for old, new in names.items()],
)
def test_an_old_name_warns_and_is_the_new_one(package: str, old: str, new: str) -> None:
    module = importlib.import_module(package)
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated: use {package}\.{new}"):
        value = getattr(module, old)
    assert value is getattr(module, new)
    assert new in module.__all__
    assert old not in module.__all__


def test_an_old_name_works_through_teal_too() -> None:
    """``import teal`` has the names of all packages."""
    with pytest.warns(DeprecationWarning, match="Promise is deprecated"):
        value = getattr(teal, "Promise")  # noqa: B009
    assert value is getattr(teal, "Guarantee")  # noqa: B009


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for package in NAMES:
        with pytest.raises(AttributeError):
            _ = importlib.import_module(package).no_such_name


def test_an_old_attribute_warns_and_is_the_new_one() -> None:
    matrices = MeasuredMatrices.__new__(MeasuredMatrices)
    matrices.max_matrices = 3
    instances: dict[str, Any] = {"Deadline": Deadline(), "MeasuredMatrices": matrices}
    assert ATTRIBUTES.keys() == instances.keys()
    for name, attributes in ATTRIBUTES.items():
        for old, new in attributes.items():
            with pytest.warns(DeprecationWarning, match=rf"{name}\.{old} is deprecated: use {new}"):
                value = getattr(instances[name], old)
            assert value == getattr(instances[name], new)


def test_an_old_keyword_warns_and_is_the_new_one() -> None:
    assert KEYWORDS.keys() == {"threads_for"}
    assert KEYWORDS["threads_for"] == {"least": "min_operations"}
    options: dict[str, Any] = {"least": 1}
    with pytest.warns(DeprecationWarning, match=r"threads_for\(least=\) is deprecated"):
        context = threads_for(1, **options)
    with context, threads_for(1, min_operations=1):
        pass
    with pytest.raises(TypeError):
        threads_for(1, never=1)  # type: ignore[call-arg]
