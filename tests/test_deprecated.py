"""Old public names against the new ones, and against the names that packages export."""

from __future__ import annotations

import importlib

import pytest

import teal
from teal.deprecated import NAMES


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
