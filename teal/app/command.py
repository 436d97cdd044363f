"""A command: its settings, and a function from them to an outcome, which is printed in one place
for all commands.

A new command is a dataclass of settings and a function of them in the room of its capability, and a
line in :mod:`teal.cli.commands`, or in a table that a package announces by an entry point in the
group ``teal.commands``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from teal.app.table import Table

# Success; no usable result, or a solver failed; wrong input; a target gap was missed; `teal check`
# raised an alarm.
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_GAP = 3
EXIT_ALARM = 4
# Characters of a line where the output is no terminal.
_TABLE_WIDTH = 80
_WIDE_TABLE_WIDTH = 180
_MAX_WIDTH = 10_000

# Groups of commands.
ALLOCATE = "allocate"
LEARN = "learn"
COMPARE = "compare and plan"
INPUT = "look and convert"
# Kernels that are compiled before a command begins.
FIRST_SOLVE: Literal["first solve"] = "first solve"

# Prints a progress message to the standard error.
Notify = Callable[[str], None]


def seldom(notify: Notify, every_s: float = 2.0) -> Notify:
    """``notify``, but for messages within ``every_s`` seconds of the call or of the last one that
    was printed.
    """
    last = time.perf_counter()

    def progress(text: str) -> None:
        nonlocal last
        if time.perf_counter() - last > every_s:
            notify(text)
            last = time.perf_counter()

    return progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a command, as it is printed.

    Attributes:
        text: lines, before the tables; ``""`` for none.
        tables: tables, behind the text.
        wide: whether the tables may be wider than 80 characters where the output is no terminal.
        written: the files that were written, in one line behind the tables; ``""`` for none.
        data: result for ``--json``, as :func:`teal.runtime.storage.json_value` takes it, or a
            function that gives it where that takes time.
        exit_code: the exit code of the process.
    """

    text: str = ""
    tables: Iterable[Table] = ()
    wide: bool = True
    written: str = ""
    data: Any
    exit_code: int = EXIT_OK


# The function of a command: its settings and what prints progress.
Run = Callable[[Any, Notify], Outcome]


@dataclasses.dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        settings: class of its settings, whose docstrings are its ``--help``.
        run: function that takes the settings and a function that prints progress, and returns an
            :class:`Outcome`; or ``module:function``, which is imported when the command runs.
        group: heading in ``teal --help``.
        kernels: kernels that are compiled before it begins: none, or those of a first solve; the
            others are compiled where they are called.
        further_kernels: tasks of :mod:`teal.app.warm_up` beside those of a first solve.
        first_word: option that a first word without dashes gives; ``""`` for none.
        formerly: options that another command had before, by the name of that command: a message
            leads from there to this command.
    """

    settings: type[Any]
    run: Run | str
    group: str
    kernels: Literal["none", "first solve"] = "none"
    further_kernels: tuple[str, ...] = ()
    first_word: str = ""
    formerly: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def outcome(self, settings: Any, notify: Notify) -> Outcome:
        """Run the command."""
        run: Run = EntryPoint("", self.run, "").load() if isinstance(self.run, str) else self.run
        return run(settings, notify)


def print_outcome(outcome: Outcome, *, as_json: bool) -> int:
    """Print an outcome as one JSON object, or as text, tables and the files that were written;
    return the exit code.
    """
    if as_json:
        from teal.runtime.storage import json_value  # here, since NumPy is slow to import

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
    """Print tables as wide as the terminal, or so wide that they can be read from a file."""
    from rich.console import Console

    for table in (each_table.of_terminal() for each_table in tables):
        console = Console(
            width=None if sys.stdout.isatty() else _WIDE_TABLE_WIDTH if wide else _TABLE_WIDTH
        )
        if wide and not sys.stdout.isatty():  # a file has room for every column
            console.width = max(
                console.width,
                console.measure(
                    table, options=console.options.update(max_width=_MAX_WIDTH)
                ).maximum,
            )
        console.print(table)
