"""Specification strings, and registries of names that code and installed packages add.

A specification of a scheme, topology or traffic file reads ``name:key=value,key=value``.
:func:`parse_spec` parses it into a :class:`Spec`; :class:`Registry` maps names to entries that are
built in, registered at run time, or announced by entry points.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from teal.errors import InputError, did_you_mean

_Entry = TypeVar("_Entry")
# Accepted spellings, in any case.
_TRUE = ("true", "yes", "1")
_FALSE = ("false", "no", "0")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Parsed specification: a name with its options.

    Attributes:
        text: the specification as written, for messages and tables.
        name: the name, without prefix and options.
        options: unparsed values by key; dashes in keys are replaced by underscores.
    """

    text: str
    name: str
    options: Mapping[str, str]

    def parse_options(
        self, **defaults: int | float | str | bool
    ) -> dict[str, int | float | str | bool]:
        """Parse the options, each to the type of its default; absent options have their defaults.

        Args:
            defaults: default value of each option, by name.

        Raises:
            InputError: an option that is not among ``defaults``, or a value of the wrong type.
        """
        unknown = sorted(set(self.options) - set(defaults))
        if unknown:
            expected = "one of: " + ", ".join(sorted(defaults)) if defaults else "no options"
            suggestion = did_you_mean(unknown[0], defaults)
            raise InputError(self.text, unknown[0], expected, repr(unknown[0]) + suggestion)
        return {
            key: self._parse(key, default) if key in self.options else default
            for key, default in defaults.items()
        }

    def _parse(self, key: str, default: int | float | str | bool) -> int | float | str | bool:
        """Return the value of the option ``key``, parsed to the type of its default; raise
        InputError for another text.
        """
        text = self.options[key]
        if isinstance(default, bool):
            if text.lower() in _TRUE + _FALSE:
                return text.lower() in _TRUE
            raise InputError(self.text, key, "true or false (also yes or no, 1 or 0)", repr(text))
        value_type = type(default)
        try:
            return value_type(text)
        except ValueError:
            expected = "an integer" if value_type is int else "a number"
            raise InputError(self.text, key, expected, repr(text)) from None


def parse_spec(text: str, prefix: str = "") -> Spec:
    """Parse ``[prefix]name[:key=value[,key=value...]]``.

    Args:
        text: the specification.
        prefix: leading text such as ``topohub:``, removed if present.  After a prefix the options
            may follow a comma instead of a colon: ``topohub:sndlib/geant,capacity=40``.

    Raises:
        InputError: an option that is not ``key=value``, or is repeated.
    """
    body = text.removeprefix(prefix)
    name, _, options_text = body.partition(":")
    if prefix and not options_text and "," in name:
        name, _, options_text = name.partition(",")
    options: dict[str, str] = {}
    for item in filter(None, options_text.split(",")):
        key, separator, value = item.partition("=")
        if not separator or not key or not value:
            expected = "key=value (without commas in the value)"
            raise InputError(text, item, expected, repr(item))
        option = key.strip().replace("-", "_")
        if option in options:
            raise InputError.invalid(text, key.strip(), "the option is given twice")
        options[option] = value.strip()
    return Spec(text, name, options)


def register(
    registry: dict[str, _Entry],
    entry_kind: str,
    name: str,
    entry: _Entry,
    *,
    replace: bool,
    reserved: Iterable[str] = (),
) -> None:
    """Add a named entry to a registry, unless another entry has the name.

    Args:
        registry: the registry to extend.
        entry_kind: kind of entry, for the message.
        name: name of the entry.
        entry: the entry; registering the same entry again is allowed.
        replace: whether to replace an existing entry of that name.
        reserved: further names that may not be registered.

    Raises:
        InputError: another entry has the name, and ``replace`` is false.
    """
    # The same entry may be registered again under its name.
    is_taken = registry[name] != entry if name in registry else name in reserved
    if is_taken and not replace:
        raise InputError.invalid(
            entry_kind,
            "name",
            f"another entry has the name {name!r}",
            "use another name, or replace=True",
        )
    registry[name] = entry


class Registry(Generic[_Entry]):
    """Entries by name: built in, registered in this process, or announced by entry points.

    Args:
        entry_kind: kind of entry, for messages.
        group: group of the entry points.
        built_in: initial entries.
    """

    def __init__(
        self, entry_kind: str, group: str, built_in: Mapping[str, _Entry] | None = None
    ) -> None:
        self._entry_kind = entry_kind
        self._group = group
        # Entries that are built in or registered.
        self._registered = dict(built_in or {})
        # Loaded entries of entry points.
        self._loaded: dict[str, _Entry] = {}

    def add(
        self, name: str, entry: _Entry, *, replace: bool = False, reserved: Iterable[str] = ()
    ) -> None:
        """Add a named entry to the registry in this process.

        Args:
            name: name of the entry.
            entry: the entry.
            replace: whether to replace an existing entry of that name.
            reserved: further names that may not be registered.

        Raises:
            InputError: another entry has the name, and ``replace`` is false.
        """
        taken_names = {*self.names(), *reserved}
        entry_point = _entry_points(self._group).get(name)
        if entry_point is not None and entry_point.value == _import_path(entry):
            # The package announces the same object by an entry point.
            taken_names.remove(name)
        register(
            self._registered, self._entry_kind, name, entry, replace=replace, reserved=taken_names
        )

    def names(self) -> list[str]:
        """Return the names of all entries of the registry, sorted."""
        return sorted({*self._registered, *_entry_points(self._group)})

    def __contains__(self, name: str) -> bool:
        return name in self._registered or name in _entry_points(self._group)

    def __getitem__(self, name: str) -> _Entry:
        """Return the entry of a name; registered entries take precedence over announced ones.

        Raises:
            InputError: the name is unknown.
        """
        try:
            return self._registered[name]
        except KeyError:
            return self._load(name)

    def _load(self, name: str) -> _Entry:
        """Return the object of the entry point with this name, imported at the first call.

        Raises:
            InputError: no entry point has the name.
        """
        if name not in self._loaded:
            entry_point = _entry_points(self._group).get(name)
            if entry_point is None:
                choices = "one of: " + ", ".join(self.names())
                expected = (
                    choices if self.names() else "a name of an installed distribution (pip install)"
                )
                suggestion = did_you_mean(name, self.names())
                raise InputError(self._entry_kind, "name", expected, repr(name) + suggestion)
            self._loaded[name] = entry_point.load()
        return self._loaded[name]


def _import_path(entry: object) -> str:
    """Return ``module:name`` of a class or function, as in entry points; "" for other objects."""
    name = getattr(entry, "__qualname__", "")
    return f"{getattr(entry, '__module__', '')}:{name}" if name else ""


@functools.cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages by name; cached, since reading takes
    milliseconds.
    """
    return {entry_point.name: entry_point for entry_point in entry_points(group=group)}
