"""Functions of Python over a network, what was measured on it, and options by name.

The options are the fields of a dataclass of settings: each is said once, there, and editors
complete them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from teal.app.typed_values import SettingTypeError, typed
from teal.errors import InputError, did_you_mean
from teal.network import TrafficMatrices
from teal.objectives import Objective

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_Report = TypeVar("_Report")


def with_options(
    kind: Callable[_P, _Options],
) -> Callable[
    [Callable[[Any, Any, _Options], _Report]], Callable[Concatenate[Any, Any, _P], _Report]
]:
    """Replace the parameter ``options`` of a function by the fields of the options, by name.

    Args:
        kind: dataclass of the options.
    """

    def decorate(
        function: Callable[[Any, Any, _Options], _Report],
    ) -> Callable[Concatenate[Any, Any, _P], _Report]:
        usual = inspect.signature(function)
        named = inspect.signature(kind)
        names = [name for name in usual.parameters if name != "options"]
        first = [usual.parameters[name] for name in names]

        @functools.wraps(function)
        def call(*positional: Any, **settings: Any) -> _Report:
            group_settings = {name: settings.pop(name) for name in names if name in settings}
            bound = usual.bind(*positional, **group_settings, options=options_of(kind, settings))
            return function(*bound.args, **bound.kwargs)

        call.options = kind  # type: ignore[attr-defined]
        call.__signature__ = usual.replace(parameters=[*first, *named.parameters.values()])  # type: ignore[attr-defined]
        return call  # network and traffic may be given by name too

    return decorate


def options_of(kind: Callable[..., _Options], settings: dict[str, Any]) -> _Options:
    """The options, by their names; a name that there is not is refused with those that there are.

    Values are checked and converted by :func:`teal.app.typed_values.typed`.  Options that the class
    names in ``TRAFFIC_OPTIONS`` may also be matrices.

    Args:
        kind: dataclass of the options.
        settings: values by name.

    Raises:
        InputError: an unknown name, a value of another kind or out of its range, or none where
            one is needed.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = dict[str, Any]()
    for name, value in settings.items():
        if name not in names:
            near = did_you_mean(name, names)
            expected = "one of " + ", ".join(sorted(names))
            raise InputError(kind.__name__, name, expected, f"{name}={value!r}{near}")
        if name in getattr(kind, "TRAFFIC_OPTIONS", ()) and isinstance(value, TrafficMatrices):
            values[name] = value
            continue
        try:
            # An objective may also be one that was registered.
            checked = typed(hints[name], value)
            values[name] = Objective(checked).spec if name == "objective" else checked
        except SettingTypeError as error:
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, "", error.expected, error.actual) from None
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise InputError(f"--{field.name.replace('_', '-')}", "", "a value", "none")
    return kind(**values)
