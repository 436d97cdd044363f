"""Python functions whose keyword arguments are the fields of a settings dataclass.

:func:`with_options` gives such a function the signature of the dataclass, so that editors complete
its options; :func:`options_of` checks and converts their values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, get_type_hints

from teal.app.typed_values import SettingTypeError, typed
from teal.deprecated import new_option
from teal.errors import InputError, did_you_mean
from teal.network import TrafficMatrices
from teal.objectives import Objective

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_Report = TypeVar("_Report")


def with_options(
    options_class: Callable[_P, _Options],
) -> Callable[
    [Callable[[Any, Any, _Options], _Report]], Callable[Concatenate[Any, Any, _P], _Report]
]:
    """Return a decorator that replaces the parameter ``options`` of a function by keyword arguments
    with the names of a dataclass's fields.

    Args:
        options_class: dataclass of the options.
    """

    # The decorated function takes network and traffic, and keyword arguments for the options.
    def decorate(
        function: Callable[[Any, Any, _Options], _Report],
    ) -> Callable[Concatenate[Any, Any, _P], _Report]:
        signature = inspect.signature(function)
        option_parameters = inspect.signature(options_class).parameters.values()
        # The other parameters: network and traffic.
        input_names = [name for name in signature.parameters if name != "options"]
        input_parameters = [signature.parameters[name] for name in input_names]

        @functools.wraps(function)
        def call(*positional: Any, **settings: Any) -> _Report:
            # Network and traffic may be keyword arguments, too.
            named_inputs = {name: settings.pop(name) for name in input_names if name in settings}
            bound = signature.bind(
                *positional, **named_inputs, options=options_of(options_class, settings)
            )
            return function(*bound.args, **bound.kwargs)

        # Show the fields of the dataclass in place of the parameter `options`.
        call.options = options_class  # type: ignore[attr-defined]
        call.__signature__ = signature.replace(parameters=[*input_parameters, *option_parameters])  # type: ignore[attr-defined]
        return call

    return decorate


def options_of(options_class: Callable[..., _Options], settings: dict[str, Any]) -> _Options:
    """Build the options of a function from keyword arguments, after checking and converting them.

    Args:
        options_class: dataclass of the options; those in its ``TRAFFIC_OPTIONS`` may be traffic
            matrices.
        settings: values by name.

    Raises:
        InputError: an unknown name, an invalid value, or a missing required option.
    """
    # Convert each value to the type of its field, which may be given by an old name.
    hints = get_type_hints(options_class)
    names = [field.name for field in dataclasses.fields(options_class)]  # type: ignore[arg-type]
    values = dict[str, Any]()
    for given_name, value in settings.items():
        name = given_name
        if name not in names:
            name = _renamed(options_class, name)
        if name not in names:
            suggestion = did_you_mean(name, names)
            expected = "one of " + ", ".join(sorted(names))
            raise InputError(
                options_class.__name__, name, expected, f"{name}={value!r}{suggestion}"
            )
        if name in values:
            raise InputError.invalid(
                options_class.__name__,
                name,
                "given by its old and its new name",
                "use the new name alone",
            )
        if name in getattr(options_class, "TRAFFIC_OPTIONS", ()) and isinstance(
            value, TrafficMatrices
        ):
            values[name] = value
            continue
        try:
            # Objectives are normalised; registered ones are accepted, too.
            typed_value = typed(hints[name], value)
            values[name] = Objective(typed_value).spec if name == "objective" else typed_value
        except SettingTypeError as error:
            option = f"--{name.replace('_', '-')}"
            raise InputError(option, "", error.expected, error.actual) from None
    # Options without a default must be given.
    for field in dataclasses.fields(options_class):  # type: ignore[arg-type]
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise InputError.invalid(
                f"--{field.name.replace('_', '-')}", "", "this option is required"
            )
    return options_class(**values)


def _renamed(options_class: Callable[..., Any], name: str) -> str:
    """Return the present name of an option, with a warning if ``name`` is its old one."""
    new_name = new_option(options_class, name) if isinstance(options_class, type) else None
    if new_name is None:
        return name
    message = f"{options_class.__name__}: option {name} is deprecated: use {new_name}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return new_name
