"""The settings of a run that can be resumed, kept in its folder: ``--resume --out OUT`` need not repeat them."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from teal.errors import InputError
from teal.runtime.storage import atomic_file
from teal.studies.journal import JOURNAL

SETTINGS = "settings.json"
_Config = TypeVar("_Config")


def save_settings(config: Any) -> None:
    """Write the settings of a run into its folder ``config.out``."""
    config.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(config.out / SETTINGS) as temporary:
        values = dataclasses.asdict(config) | {"resume": False}
        text = json.dumps(values, default=str, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def stored_settings(kind: type[_Config], out: Path) -> _Config | None:
    """The settings of the run in a folder; None if the folder has none.

    Args:
        kind: class of the settings.
        out: folder of the run, with ``settings.json`` or a journal.

    Raises:
        InputError: settings of another command or version.
    """
    for name in (SETTINGS, JOURNAL):
        file = out / name
        try:
            with file.open(encoding="utf-8") as stream:
                values = json.load(stream) if name == SETTINGS else json.loads(stream.readline())["settings"]
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(str(file), "", "the settings of a run", str(error)) from None
        hints = get_type_hints(kind, include_extras=False)
        try:
            return kind(**{field: typed(hints[field], value) for field, value in values.items()})
        except (KeyError, TypeError, ValueError) as error:
            expected = f"the settings of a run of this version and command ({kind.__name__})"
            raise InputError(str(file), "", expected, f"{type(error).__name__}: {error}") from None
    return None


def typed(hint: Any, value: Any) -> Any:
    """A value of JSON or of a caller as the type of a setting: paths, names of an enumeration, tuples.

    A text where several are taken is one of them.

    Raises:
        ValueError: a name that an enumeration does not have.
    """
    origin = get_origin(hint)
    if origin is Annotated:
        return typed(get_args(hint)[0], value)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        kinds = [one for one in get_args(hint) if one is not type(None)]
        chosen = [one for one in kinds if isinstance(one, type) and isinstance(value, one)]
        return value if chosen else typed(kinds[0], value)
    if origin is tuple:
        several = [value] if isinstance(value, str | Path) else value
        return tuple(typed(get_args(hint)[0], one) for one in several)
    if isinstance(hint, type) and issubclass(hint, Path | enum.Enum):
        return hint(value)
    return value
