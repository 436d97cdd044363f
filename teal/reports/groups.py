"""Rows of results by network, by scheme and by level, in order of appearance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

from teal.evaluation import Row


class _Measured(Protocol):
    @property
    def topology(self) -> str: ...
    @property
    def traffic(self) -> str: ...
    @property
    def scheme(self) -> str: ...


_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)
_AnyMeasured = TypeVar("_AnyMeasured", bound=_Measured)


def by_network(rows: Iterable[_AnyMeasured]) -> dict[tuple[str, str], list[_AnyMeasured]]:
    """The rows of each (topology, traffic)."""
    return _grouped(rows, lambda row: (row.topology, row.traffic))


def by_scheme(rows: Iterable[_AnyMeasured]) -> dict[str, list[_AnyMeasured]]:
    """The rows of each scheme."""
    return _grouped(rows, lambda row: row.scheme)


def by_level(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each (protocol, level)."""
    return _grouped(rows, lambda row: (row.protocol, row.level))


def _grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
