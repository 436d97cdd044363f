"""The command ``teal``: parse the settings, run the command, print its result."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import select
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import tyro
from rich.console import Console
from tyro import MISSING_NONPROP
from tyro.conf import EnumChoicesFromValues, FlagCreatePairsOff, UseAppendAction

from teal.app.command import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_OK,
    GROUPS,
    Command,
    Notify,
    print_outcome,
)
from teal.cli.commands import COMMANDS, MISSING
from teal.cli.help import check_options, command_help, completion, overview
from teal.deprecated import new_option
from teal.errors import WARNING, InputError, InputWarning, TealError, did_you_mean

_DESCRIPTION = (
    "Traffic engineering for wide-area networks: computes exactly feasible allocations and proves "
    "how far from the optimum they can be.  Example: teal solve --topology b4 --traffic "
    "gravity:seed=0,load=8 --gap 0.001.  Every command takes --quiet (no progress; warnings stay) "
    "and --json (one JSON object instead of text).  Completion: source <(teal --completion bash), "
    "or zsh."
)
_EPILOGUE = (
    "Every command takes --json (one JSON object instead of text) and --quiet (no progress; "
    "warnings stay).  Exit codes: 0 success; 1 no usable result, or a solver failed; 2 wrong "
    "input; 3 a target gap was missed; 4 teal check raised an alarm; 130 interrupted."
)
# Name of the installed package.
_PACKAGE = "teal-te"
# If only these options are given with --resume, all others are read from the resumed run.
_OPTIONS_WITH_RESUME = {"--resume", "--out", "--time-budget", "--max-steps", "--workers", "--worst"}
# Exit code of shells for Ctrl-C.
_EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    0: success; 1: no usable result, or a solver failed; 2: invalid input, or a file that cannot be
    read or written; 3: a target gap was missed; 4: `teal check` raised an alarm; 130: interrupted.
    If the reader of the output has closed it, as in ``| head``, the command ends without a message,
    with 1.

    Args:
        arguments: words of the command line after ``teal``; None for those of this process.
    """
    try:
        code = _main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Output that is still buffered is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _main(arguments: Sequence[str] | None) -> int:
    """Run one command, print errors, and return the exit code.

    Args:
        arguments: words of the command line after ``teal``; None for those of this process.

    Raises:
        BrokenPipeError: the reader of the output has closed it.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Remove the options of all commands.
    is_quiet = "--quiet" in arguments
    as_json = "--json" in arguments
    arguments = [word for word in arguments if word not in ("--quiet", "--json")]
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    # Warnings are printed also with --quiet, which redirects sys.stderr: keep the present one.
    warning_console = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def notify(text: str) -> None:
        (warning_console if text.startswith(WARNING) else console).print(text, markup=False)

    config = None
    try:
        # Version, help or completion script.
        text = _information(arguments)
        if text is not None:
            sys.stdout.write(text)
            return EXIT_OK
        # Parse the settings, then run the command.
        name, remaining = _split_command(arguments)
        command = COMMANDS[name]
        with _print_input_warnings(notify):
            config = _parse_settings(name, command, remaining)
        with (
            _print_input_warnings(notify),
            _discard_stderr() if is_quiet else contextlib.nullcontext(),
        ):
            return _run(command, config, notify, as_json=as_json)
    except TealError as error:
        print(f"teal: error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_closed_by_reader(sys.stdout):
            raise
        print(
            f"teal: error: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr
        )
        return EXIT_INPUT
    except KeyboardInterrupt:
        print(f"\nteal: interrupted{_resume_hint(config)}", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _information(arguments: list[str]) -> str | None:
    """Return the text of --version, --completion or --help, or the overview without a command; None
    if a command is to be run.

    Raises:
        InputError: an unknown command or shell.
    """
    if arguments in (["--version"], ["-V"]):
        return f"teal {version(_PACKAGE)}\n"
    if arguments[:1] == ["--completion"]:
        return completion(COMMANDS, arguments[1:])
    name, remaining = _split_command(arguments)
    if not name:
        return _overview()
    if {"--help", "-h", "--help-all"} & set(remaining):
        return command_help(
            name, COMMANDS[name].settings, _EPILOGUE, has_all="--help-all" in remaining
        )
    return None


def _parse_settings(name: str, command: Command, arguments: list[str]) -> Any:
    """Parse the options of a command into its settings.

    Args:
        name: name of the command.
        command: the command.
        arguments: words after its name.

    Raises:
        InputError: an unknown option, or an invalid value.
        SystemExit: another error, which tyro has printed.
    """
    # The first word may be a value without its option; old names of options become present ones.
    if command.first_word and arguments and not arguments[0].startswith("-"):
        arguments = [f"--{command.first_word}", *arguments]
    arguments = [_current_option(command.settings, word) for word in arguments]
    check_options(name, COMMANDS, arguments)
    # The field of --from is ``from_``, since ``from`` is a keyword of Python.
    arguments = [
        "--from_" if word == "--from" else word.replace("--from=", "--from_=", 1)
        for word in arguments
    ]
    return tyro.cli(
        command.settings,
        prog=f"teal {name}",
        args=arguments,
        default=_resumed_settings(command, arguments),
        config=(EnumChoicesFromValues, FlagCreatePairsOff, UseAppendAction),
    )


def _current_option(settings: type[Any], word: str) -> str:
    """Replace an option's old name by the present one, with a warning; return other words as they
    are.
    """
    if not word.startswith("--"):
        return word
    option, equals, value = word.partition("=")
    new_name = new_option(settings, option[2:].replace("-", "_"))
    if new_name is None:
        return word
    new_word = f"--{new_name.replace('_', '-')}"
    warnings.warn(f"{option} is deprecated: use {new_word}", InputWarning, stacklevel=2)
    return f"{new_word}{equals}{value}"


def _is_closed_by_reader(stream: TextIO) -> bool:
    """Return whether an output stream is a pipe whose reader has closed it."""
    poll = select.poll()
    poll.register(stream, select.POLLERR)
    # POLLERR: no process reads the pipe any more.  Poll without waiting.
    return any(events & select.POLLERR for _, events in poll.poll(0))


@contextlib.contextmanager
def _print_input_warnings(notify: Notify) -> Iterator[None]:
    """Print every :class:`InputWarning` of the block as a line by ``notify``, which ``--quiet``
    does not hide; other warnings are shown as before.
    """
    with warnings.catch_warnings():
        show_others = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *location: Any, **options: Any
        ) -> None:
            if issubclass(category, InputWarning):
                notify(f"{WARNING}{message}")
            else:
                show_others(message, category, *location, **options)

        warnings.showwarning = show
        warnings.filterwarnings("always", category=InputWarning)
        yield


@contextlib.contextmanager
def _discard_stderr() -> Iterator[None]:
    """Discard standard error in the block: progress and notes."""
    with open(os.devnull, "w", encoding="utf-8") as devnull, contextlib.redirect_stderr(devnull):
        yield


def _split_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Split the words of the command line into the name of the command, of one or two words, and
    the remaining words; the name is "" if the overview of all commands is asked for.

    Raises:
        InputError: an unknown name.
    """
    if not arguments or arguments[0] in ("--help", "-h"):
        return "", []
    # A known name of two words, or of one word.
    two_words = " ".join(arguments[:2])
    for name, num_words in ((two_words, 2), (arguments[0], 1)):
        if name in COMMANDS:
            return name, arguments[num_words:]
    # The first word of several commands, such as "topology".
    subcommands = [name for name in COMMANDS if name.startswith(f"{arguments[0]} ")]
    if subcommands and len(arguments) > 1 and arguments[1] in ("--help", "-h"):
        return "", []
    # An unknown name: suggest the nearest one, and name missing packages.
    typed = two_words if subcommands else arguments[0]
    problem = f"no command {typed!r}{'' if subcommands else did_you_mean(typed, COMMANDS)}"
    remedy = f"use one of: {', '.join(subcommands)}" if subcommands else "teal --help lists them"
    missing = "".join(
        f"; the commands of {package} are missing: {reason}" for package, reason in MISSING.items()
    )
    raise InputError.invalid("teal", "", problem, remedy + missing)


def _resumed_settings(command: Command, arguments: Sequence[str]) -> Any:
    """Return the stored settings of the run that ``--resume`` continues, as default options.

    Args:
        command: the command.
        arguments: words after its name.

    Returns:
        The settings of that run.  In two cases tyro's marker for "no defaults": without
        ``--resume``, and if the command line has options beside those of ``_OPTIONS_WITH_RESUME``.

    Raises:
        InputError: the folder has no interrupted run.
    """
    # Values of --OPTION=VALUE by option; "" for --OPTION VALUE.
    options = {
        word.partition("=")[0]: word.partition("=")[2]
        for word in arguments
        if word.startswith("--")
    }
    # With any other option, all options are those of the command line.
    if "--resume" not in options or not set(options) <= _OPTIONS_WITH_RESUME:
        return MISSING_NONPROP
    # Value of --out=FOLDER, or the word after --out.
    out = options.get("--out") or dict(itertools.pairwise(arguments)).get("--out")
    if not out:
        return MISSING_NONPROP
    from teal.app.run_files import stored_settings

    settings = stored_settings(command.settings, Path(out))
    if settings is None:
        raise InputError.invalid(
            out,
            "resume",
            "the folder has no interrupted run",
            "drop --resume to start a new run",
        )
    return dataclasses.replace(settings, overwrite=False)


def _overview() -> str:
    """Return the text of ``teal --help``, with all commands by their groups."""
    # Commands of packages may have groups of their own, which come last.
    groups: dict[str, dict[str, type[Any]]] = {title: {} for title in GROUPS}
    for name, command in COMMANDS.items():
        groups.setdefault(command.group, {})[name] = command.settings
    nonempty_groups = {title: commands for title, commands in groups.items() if commands}
    return overview(_DESCRIPTION, nonempty_groups)


def _run(command: Command, config: Any, notify: Notify, *, as_json: bool) -> int:
    """Compile the command's kernels, run it, and print its outcome; return the exit code.

    Args:
        command: the command.
        config: its settings.
        notify: prints a message.
        as_json: whether to print one JSON object instead of text.
    """
    if command.kernels != "none":
        from teal.formats import check_topology_name

        # Check the names before seconds of compilation.
        topologies = getattr(config, "topology", None) or ()
        for text in (topologies,) if isinstance(topologies, str) else topologies:
            check_topology_name(text)
        from teal.app.warm_up import compile_first

        compile_first(notify, extra_tasks=command.further_kernels)
    from teal.runtime.kernel_cache import announced

    with announced(notify):
        return print_outcome(command.outcome(config, notify), as_json=as_json)


def _resume_hint(config: Any) -> str:
    """Return a hint to continue an interrupted run by --resume; "" for a command that cannot be
    resumed, or has saved no state.
    """
    if not hasattr(config, "resume"):
        return ""
    # This module loads quickly, which matters since Ctrl-C may come while torch is being loaded.
    from teal.app.run_files import (
        JOURNAL,
        TRAINER,
    )

    if not any((config.out / name).exists() for name in (JOURNAL, TRAINER)):
        return ""
    return f"; to continue, run the same command with --resume (state in {config.out})"
