"""Functions of Python over a network, its traffic, and options by name.

The options are the fields of a dataclass of settings: each is said once, there, and editors
complete them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from teal.app.run_files import typed
from teal.errors import InputError
from teal.objectives import Objective

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_Report = TypeVar("_Report")


def with_options(
    kind: Callable[_P, _Options],
) -> Callable[
    [Callable[[Any, Any, _Options], _Report]], Callable[Concatenate[Any, Any, _P], _Report]
]:
    """Make a function of network, traffic and options one whose options are given by name.

    Args:
        kind: dataclass of the options.
    """

    def decorate(
        function: Callable[[Any, Any, _Options], _Report],
    ) -> Callable[Concatenate[Any, Any, _P], _Report]:
        @functools.wraps(function)
        def call(topology: Any, traffic: Any, **settings: Any) -> _Report:
            return function(topology, traffic, options_of(kind, settings))

        usual, named = inspect.signature(function), inspect.signature(kind)
        first = [usual.parameters[name] for name in ("topology", "traffic")]
        call.__signature__ = usual.replace(parameters=[*first, *named.parameters.values()])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]  # network and traffic may be given by name too

    return decorate


def options_of(kind: Callable[..., _Options], settings: dict[str, Any]) -> _Options:
    """The options, by their names; a name that there is not is refused with those that there are.

    Paths may be texts, names of an enumeration too, and one value may stand where several are
    taken.

    Args:
        kind: dataclass of the options.
        settings: values by name.

    Raises:
        InputError: an unknown name, or a value of another kind or out of its range.
    """
    hints, names = get_type_hints(kind), [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = dict[str, Any]()
    for name, value in settings.items():
        if name not in names:
            raise InputError(kind.__name__, name, "one of " + ", ".join(sorted(names)), repr(value))
        try:
            # An objective may also be one that was registered.
            values[name] = (
                Objective(value).spec if name == "objective" else typed(hints[name], value)
            )
        except (TypeError, ValueError) as error:
            raise InputError(
                f"--{name.replace('_', '-')}", "", "a value of this setting", str(error)
            ) from None
    return kind(**values)
