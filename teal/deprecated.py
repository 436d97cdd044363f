"""Deprecated public names, which work for one release with a DeprecationWarning.

All renamings are in the tables :data:`PACKAGES`, :data:`NAMES`, :data:`MOVED`, :data:`ATTRIBUTES`,
:data:`KEYWORDS` and :data:`OPTIONS`.  A package whose names are loaded on first use passes its
loader through :func:`with_old_names`; a class with renamed attributes has the decorator
:func:`with_old_attributes`, a function with renamed keywords :func:`with_old_keywords`.  The
command line and functions with options call :func:`new_option` for the present name of an option.
:func:`find_moved_packages` makes imports of the packages in :data:`PACKAGES` work.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Class = TypeVar("_Class", bound=type)

# Old package -> the package that has its modules now.
PACKAGES: Mapping[str, str] = {
    "teal.client": "teal_serve.client",
    "teal.evaluation": "teal_study.evaluation",
    "teal.learning": "teal_study.learning",
    "teal.planning": "teal_study.planning",
    "teal.serving": "teal_serve",
}

# Package or module: old name -> new name.
NAMES: Mapping[str, Mapping[str, str]] = {
    "teal": {
        "ClassFigures": "ClassCertificates",
        "Figures": "Metrics",
        "PdhgResult": "SolveResult",
        "PdhgState": "SolveState",
    },
    "teal.app.command": {"seldom": "throttled"},
    "teal.app.instance": {"given_weights": "demand_weights"},
    "teal.solvers.result": {"PdhgResult": "SolveResult", "PdhgState": "SolveState"},
    "teal.solvers.columns": {"improve": "generate_columns", "improving": "generating_columns"},
    "teal_serve.engine.errors": {
        "places_of_one": "max_places_per_client",
        "wrong": "invalid_request",
    },
    "teal_availability": {
        "Effects": "MergedStates",
        "Patterns": "SurvivalStates",
        "Promise": "Guarantee",
        "effects_of": "merge_states",
        "most_probable": "most_probable_states",
        "pattern_probabilities": "survival_probabilities",
        "promise_common_share": "guarantee_common_fraction",
        "promise_common_shares": "guarantee_common_fractions",
        "promise_least_loss": "guarantee_min_loss",
        "promise_tail_loss": "guarantee_min_cvar",
    },
    "teal_ip.purchases.benders": {"buy": "expand_capacity", "buy_modules": "expand_in_modules"},
    "teal_ip.purchases.hose": {"buy_for_hose": "expand_for_hose"},
}

# Package: name that moved -> its module, and its new name if that changed (``module:name``).
MOVED: Mapping[str, Mapping[str, str]] = {
    "teal.api": {"evaluate": "teal_study.api", "plan": "teal_study.api", "train": "teal_study.api"},
    "teal.solvers.pdhg": {
        "PdhgResult": "teal.solvers.result:SolveResult",
        "PdhgState": "teal.solvers.result:SolveState",
        "Starter": "teal.solvers.result",
        "Stop": "teal.solvers.result",
        "prepare": "teal.solvers.pipeline",
        "register_sequence": "teal.solvers.pipeline",
        "solve": "teal.solvers.pipeline",
        "solving": "teal.solvers.pipeline",
        "takes_starter": "teal.solvers.pipeline",
        "tasks_of": "teal.solvers.pipeline",
    },
}
# Class: old attribute -> new attribute.
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Assessment": {"figures": "metrics"},
    "Deadline": {"left": "remaining_s"},
    "Guarantee": {"left_out": "is_excluded"},
    "Hose": {"dearest": "max_weight_matrix"},
    "MeasuredMatrices": {"most": "max_matrices"},
    "MergedStates": {"pattern": "path_set", "rest": "unlisted_probability"},
    "Problem": {"balanced": "as_min_max_program", "largest_share": "max_share"},
    "Past": {"known": "num_known", "most": "window_length"},
    "Scenarios": {
        "limit": "max_utilisation",
        "most": "max_added",
        "regular": "existing_capacity",
    },
    "States": {"rest": "unlisted_probability"},
    "SurveyReport": {"done": "results_by_analysis"},
    "WithPartCertificates": {"lines": "part_certificates"},
}
# Function, or method as Class.method: old keyword -> new keyword.
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "common_quantile": {"patterns": "survival_states"},
    "guarantee_common_fraction": {"patterns": "survival_states"},
    "guarantee_common_fractions": {"patterns": "survival_states"},
    "guarantee_min_cvar": {
        "patterns": "survival_states",
        "effects": "merged_states",
        "counts_cut": "counts_disconnected",
    },
    "guarantee_min_loss": {"patterns": "survival_states"},
    "Past.before": {"known": "num_known"},
    "PathSet.incidences": {"most": "max_paths"},
    "solve": {"starter": "model"},
    "threads_for": {"least": "min_operations"},
    "most_probable_states": {
        "rest": "max_unlisted_probability",
        "most_down": "max_failed_components",
        "most_states": "max_states",
    },
    "scenarios_of": {
        "limit": "max_utilisation",
        "most": "max_added",
        "regular": "existing_capacity",
    },
}
# Class of settings: old option -> new option; the option of a field "max_states" is --max-states.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "AvailabilityOptions": {
        "rest": "max_unlisted_probability",
        "most_down": "max_failed_components",
        "most_states": "max_states",
    },
    "MetricsOptions": {"most": "max_metric", "at_most": "max_changes"},
}


def with_old_names(
    package: str, load: Callable[[str], Any] | Mapping[str, Any]
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package or module, which also knows old forms of its names.

    Args:
        package: key of :data:`NAMES`.
        load: returns the object of a present name; or the names of a module, ``globals()``.
    """

    def load_present(name: str) -> Any:
        """Return the object of a present name; raise AttributeError for any other name."""
        if callable(load):
            return load(name)
        if name not in load:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return load[name]

    def load_any(name: str) -> Any:
        """Return the object of a present name, or of an old one with a warning."""
        new_name = NAMES[package].get(name)
        if new_name is None:
            return load_present(name)
        message = f"{package}.{name} is deprecated: use {package}.{new_name}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return load_present(new_name)

    return load_any


def with_moved_names(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which knows the names that moved elsewhere.

    Args:
        package: key of :data:`MOVED`.
    """

    def load(name: str) -> Any:
        """Return the object of a name that moved, from its new module, with a warning."""
        if name not in MOVED[package]:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, new_name = MOVED[package][name].partition(":")
        new_name = new_name or name
        message = f"{package}.{name} is deprecated: use {module}.{new_name}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(module), new_name)

    return load


def old_method(instance: object, old: str, new: str) -> Callable[..., Any] | None:
    """Return the method of an object under its old name, with a warning; None if it has none.

    Args:
        instance: an object of a class that a package defines.
        old, new: deprecated and current name of the method.
    """
    method: Callable[..., Any] | None = getattr(instance, old, None)
    if method is not None:
        message = f"{type(instance).__name__}.{old} is deprecated: name it {new}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
    return method


def with_old_attributes(cls: _Class) -> _Class:
    """Decorate a class: add properties with the deprecated names of its attributes in
    :data:`ATTRIBUTES`, which warn and read the current ones.
    """
    for old_name, new_name in ATTRIBUTES[cls.__name__].items():
        setattr(cls, old_name, property(_read_by(cls.__name__, old_name, new_name)))
    return cls


def _read_by(owner: str, old_name: str, new_name: str) -> Callable[[Any], Any]:
    """Return a getter that warns about a deprecated name and reads the current attribute.

    Args:
        owner: name of the class.
        old_name: deprecated name of the attribute.
        new_name: current name of the attribute.
    """

    def read(instance: Any) -> Any:
        message = f"{owner}.{old_name} is deprecated: use {new_name}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(instance, new_name)

    return read


def with_old_keywords(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function: accept the deprecated names of its keyword arguments in
    :data:`KEYWORDS`, with a warning.
    """
    name = function.__qualname__
    new_names = KEYWORDS[name]

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for old_name, new_name in new_names.items():
            if old_name in kwargs:
                message = f"{name}({old_name}=) is deprecated: use {new_name}"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                kwargs[new_name] = kwargs.pop(old_name)
        return function(*args, **kwargs)

    return call


def new_option(settings: type, name: str) -> str | None:
    """Return the present name of a renamed option; None if the option was not renamed.

    Args:
        settings: class of settings; renamings of its base classes count as well.
        name: old name, as a field.
    """
    for cls in settings.__mro__:
        if name in OPTIONS.get(cls.__name__, {}):
            return OPTIONS[cls.__name__][name]
    return None


class _MovedModule(importlib.abc.Loader):
    """Loader of a module under its old name: the module of the new name itself."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Let the import system create an empty module, which :meth:`exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of the empty one.

        The import system returns what ``sys.modules`` has under the old name then.
        """
        sys.modules[module.__name__] = importlib.import_module(self._new_name)


class _MovedPackages(importlib.abc.MetaPathFinder):
    """Finder of modules by the old names of their packages, :data:`PACKAGES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of a moved package, with a warning; None for others."""
        del path, target
        if not fullname.startswith("teal."):
            return None
        # Split the name into the moved package, such as teal.client, and the module inside it.
        package, dot, relative_name = fullname.partition(".")
        subpackage, submodule_dot, submodule = relative_name.partition(".")
        new_package = PACKAGES.get(f"{package}{dot}{subpackage}")
        if new_package is None:
            return None
        new_name = f"{new_package}{submodule_dot}{submodule}"
        if importlib.util.find_spec(new_name) is None:
            return None
        warnings.warn(
            f"module {fullname} is deprecated: use {new_name}", DeprecationWarning, stacklevel=2
        )
        return importlib.machinery.ModuleSpec(fullname, _MovedModule(new_name))


def find_moved_packages() -> None:
    """Let the import system find modules by the old names of their packages."""
    if not any(isinstance(finder, _MovedPackages) for finder in sys.meta_path):
        # First: the path of a moved package would make a second copy of each of its modules.
        sys.meta_path.insert(0, _MovedPackages())
