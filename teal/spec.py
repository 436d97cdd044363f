"""Specifications of schemes, topologies and traffic: ``name:key=value,key=value``; and names that
code may add.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from teal.errors import InputError, did_you_mean

_Entry = TypeVar("_Entry")
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")  # accepted spellings, in any case


@dataclasses.dataclass(frozen=True)
class Spec:
    """A parsed name with its options.

    Attributes:
        text: the specification as written, for messages and tables.
        name: the part between a prefix and the options.
        options: key to unparsed value; dashes in keys are replaced by underscores.
    """

    text: str
    name: str
    options: Mapping[str, str]

    def parse_options(
        self, **defaults: int | float | str | bool
    ) -> dict[str, int | float | str | bool]:
        """Every option of ``defaults``, parsed to the type of its default; the default where it is
        not given.

        Raises:
            InputError: an option that is not among ``defaults``, or a value of the wrong type.
        """
        unknown = sorted(set(self.options) - set(defaults))
        if unknown:
            expected = "one of: " + ", ".join(sorted(defaults)) if defaults else "no options"
            near = did_you_mean(unknown[0], defaults)
            raise InputError(self.text, unknown[0], expected, repr(unknown[0]) + near)
        return {
            key: self._parse(key, default) if key in self.options else default
            for key, default in defaults.items()
        }

    def _parse(self, key: str, default: int | float | str | bool) -> int | float | str | bool:
        text = self.options[key]
        if isinstance(default, bool):
            if text.lower() in _TRUE + _FALSE:
                return text.lower() in _TRUE
            raise InputError(self.text, key, "true or false (also yes or no, 1 or 0)", repr(text))
        kind = type(default)
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise InputError(self.text, key, expected, repr(text)) from None


def parse_spec(text: str, prefix: str = "") -> Spec:
    """Parse ``[prefix]name[:key=value[,key=value...]]``.

    Args:
        text: the specification.
        prefix: leading text such as ``topohub:``, removed if present.  After a prefix the options
            may follow a comma instead of a colon: ``topohub:sndlib/geant,capacity=40``.

    Raises:
        InputError: an option that is not ``key=value``, or stands there twice.
    """
    body = text.removeprefix(prefix)
    name, _, tail = body.partition(":")
    if prefix and not tail and "," in name:
        name, _, tail = name.partition(",")
    options: dict[str, str] = {}
    for item in filter(None, tail.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            expected = "key=value (a value, such as the name of a file, may have no comma)"
            raise InputError(text, item, expected, repr(item))
        option = key.strip().replace("-", "_")
        if option in options:
            raise InputError(text, key.strip(), "each option once", repr(item))
        options[option] = value.strip()
    return Spec(text, name, options)


def register(
    registry: dict[str, _Entry],
    what: str,
    name: str,
    entry: _Entry,
    *,
    replace: bool,
    others: Iterable[str] = (),
) -> None:
    """Add a name to a registry.

    Args:
        registry: to which it is added.
        what: the kind of entry, for the message.
        name: name of the entry.
        entry: entry, which may be there already.
        replace: whether it may take the place of another one.
        others: names that are taken without being in the registry.

    Raises:
        InputError: the name is taken by another entry.
    """
    is_taken = registry[name] != entry if name in registry else name in others
    if is_taken and not replace:
        raise InputError(what, "name", "one that is not taken (or replace=True)", repr(name))
    registry[name] = entry


class Registry(Generic[_Entry]):
    """Names that code registers in this process, and those that installed packages announce by
    entry points.

    Args:
        what: the kind of entry, for messages.
        group: group of the entry points.
        built_in: entries that are there without either.
    """

    def __init__(self, what: str, group: str, built_in: Mapping[str, _Entry] | None = None) -> None:
        self._what, self._group = what, group
        self._known = dict(built_in or {})  # built in or registered
        self._loaded: dict[str, _Entry] = {}  # of entry points

    def add(
        self, name: str, entry: _Entry, *, replace: bool = False, others: Iterable[str] = ()
    ) -> None:
        """Register an entry in this process.

        Args:
            name: name of the entry.
            entry: what is registered.
            replace: whether it may take the place of another one.
            others: names that are taken without being in this registry.

        Raises:
            InputError: another entry has the name, and ``replace`` is false.
        """
        taken = {*self.names(), *others}
        announced = _announced(self._group).get(name)
        if announced is not None and announced.value == _place_of(entry):
            taken.remove(name)  # the same object, announced by its package too
        register(self._known, self._what, name, entry, replace=replace, others=taken)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._known, *_announced(self._group)})

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in _announced(self._group)

    def __getitem__(self, name: str) -> _Entry:
        """The entry of a name; one that was registered comes before one that is announced.

        Raises:
            InputError: there is none.
        """
        try:
            return self._known[name]
        except KeyError:
            return self._load(name)

    def _load(self, name: str) -> _Entry:
        if name not in self._loaded:
            point = _announced(self._group).get(name)
            if point is None:
                known = "one of: " + ", ".join(self.names())
                expected = (
                    known
                    if self.names()
                    else "an installed Teal, which announces it (pip install .)"
                )
                near = did_you_mean(name, self.names())
                raise InputError(self._what, "name", expected, repr(name) + near)
            self._loaded[name] = point.load()
        return self._loaded[name]


def _place_of(entry: object) -> str:
    """Module and name of a class or function, as an entry point writes them; "" of others."""
    name = getattr(entry, "__qualname__", "")
    return f"{getattr(entry, '__module__', '')}:{name}" if name else ""


@functools.cache
def _announced(group: str) -> dict[str, EntryPoint]:
    """Entry points of installed packages, by name; read once, since it takes milliseconds."""
    return {point.name: point for point in entry_points(group=group)}
