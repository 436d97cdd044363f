"""Old forms of renamed public names: they work for one release, with a warning.

:data:`NAMES` is the only table.  A package whose names are loaded on first use passes its loader
through :func:`with_old_names`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

# Package: old name -> new name.
NAMES: Mapping[str, Mapping[str, str]] = {
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
}


def with_old_names(package: str, load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the loader of a package's names, extended by their old forms.

    Args:
        package: key of :data:`NAMES`.
        load: returns the object of a present name.
    """

    def load_any(name: str) -> Any:
        new_name = NAMES[package].get(name)
        if new_name is None:
            return load(name)
        message = f"{package}.{name} is deprecated: use {package}.{new_name}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return load(new_name)

    return load_any
