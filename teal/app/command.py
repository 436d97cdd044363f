"""Definition of a command (settings and function), and printing of its outcome.

A command has a dataclass of settings and a function from them to an :class:`Outcome`, in the
package of its capability, and a line in :mod:`teal.cli.commands`, or in a table that another
distribution announces by an entry point in the group ``teal.commands``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Literal

from teal.deprecated import with_old_names

if TYPE_CHECKING:
    from teal.app.table import Table

# Exit codes: success; no usable result, or a solver failed; invalid input; a target gap was missed;
# `teal check` raised an alarm.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_GAP = 3
EXIT_ALARM = 4
# Characters of a line if the output is not a terminal.
_TABLE_WIDTH = 80
_WIDE_TABLE_WIDTH = 180
_MAX_WIDTH = 10_000

# Groups of commands, in the order of `teal --help`.
ALLOCATE = "allocate"
LEARN = "learn"
COMPARE = "compare and plan"
INPUT = "look and convert"
MACHINE = "this machine"
GROUPS = (ALLOCATE, COMPARE, LEARN, INPUT, MACHINE)
# Kernels that are compiled before a command begins.
FIRST_SOLVE: Literal["first solve"] = "first solve"

# Prints a progress message to the standard error.
Notify = Callable[[str], None]


def throttled(notify: Notify, every_s: float = 2.0) -> Notify:
    """Return a rate-limited ``notify``: it drops messages less than ``every_s`` seconds after the
    previous printed one, or after this call.
    """
    # Time of the last printed message.
    last = time.perf_counter()

    def progress(text: str) -> None:
        nonlocal last
        if time.perf_counter() - last > every_s:
            notify(text)
            last = time.perf_counter()

    return progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a command, for printing.

    Attributes:
        text: lines before the tables; ``""`` for none.
        tables: tables after the text.
        wide: whether the tables may be wider than 80 characters if the output is not a terminal.
        written: line about the written files, after the tables; ``""`` for none.
        data: result for ``--json``: dataclasses, mappings, lists and numbers, or a function that
            returns them, called only with ``--json``.
        exit_code: exit code of the process.
    """

    text: str = ""
    tables: Iterable[Table] = ()
    wide: bool = True
    written: str = ""
    data: Any
    exit_code: int = EXIT_OK


# Function of a command: from its settings and a function that prints progress to the outcome.
Run = Callable[[Any, Notify], Outcome]


@dataclasses.dataclass(frozen=True)
class Command:
    """Command of the command line: its settings and the function that runs it.

    Attributes:
        settings: dataclass of its settings, whose docstrings are its ``--help``.
        run: function that takes the settings and a function that prints progress, and returns an
            :class:`Outcome`; or ``module:function``, which is imported when the command runs.
        group: heading in ``teal --help``.
        kernels: kernels to compile before the command starts: none, or those of a first solve;
            other kernels are compiled at their first call.
        further_kernels: tasks of :mod:`teal.app.warm_up` beside those of a first solve.
        first_word: option whose value may be given as the first word without dashes, as in
            ``teal topology get NAME``; ``""`` for none.
        formerly: options that moved here, by the name of their former command, whose error message
            names this command.
    """

    settings: type[Any]
    run: Run | str
    group: str
    kernels: Literal["none", "first solve"] = "none"
    further_kernels: tuple[str, ...] = ()
    first_word: str = ""
    formerly: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def outcome(self, settings: Any, notify: Notify) -> Outcome:
        """Run the command with its settings and return its outcome; ``notify`` prints progress."""
        run: Run = EntryPoint("", self.run, "").load() if isinstance(self.run, str) else self.run
        return run(settings, notify)


def print_outcome(outcome: Outcome, *, as_json: bool) -> int:
    """Print an outcome as one JSON object, or as text, tables and the line about written files;
    return the exit code.
    """
    if as_json:
        # Imported here, since NumPy is slow to import.
        from teal.runtime.storage import json_value

        data: Any = outcome.data() if callable(outcome.data) else outcome.data
        print(json.dumps(json_value(data), allow_nan=False, default=str))
        return outcome.exit_code
    if outcome.text:
        print(outcome.text)
        sys.stdout.flush()
    print_tables(outcome.tables, wide=outcome.wide)
    if outcome.written:
        print(outcome.written)
    return outcome.exit_code


def print_tables(tables: Iterable[Table], *, wide: bool = True) -> None:
    """Print tables: in a terminal as wide as it is; to a file or pipe in full width, or 80
    characters wide unless ``wide``.
    """
    from rich.console import Console

    for table in (each_table.of_terminal() for each_table in tables):
        console = Console(
            width=None if sys.stdout.isatty() else _WIDE_TABLE_WIDTH if wide else _TABLE_WIDTH
        )
        # In a file, a wide table gets the width of all its columns.
        if wide and not sys.stdout.isatty():
            console.width = max(
                console.width,
                console.measure(
                    table, options=console.options.update(max_width=_MAX_WIDTH)
                ).maximum,
            )
        console.print(table)


__getattr__ = with_old_names(__name__, globals())
