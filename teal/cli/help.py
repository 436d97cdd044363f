"""Texts of ``--help`` and completion scripts, and errors about unknown options.

The text of an option is the docstring of its field in the settings dataclass.  Options are grouped
by ``GROUPS`` of the settings, else by the shared base class that defines them, else by their names.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from teal.app.command import Command
from teal.app.settings import (
    CalibratedConfig,
    CandidateConfig,
    ClassConfig,
    ObjectiveConfig,
    PathConfig,
    ProgramConfig,
)
from teal.errors import InputError, did_you_mean
from teal.option import field_options

# Maximum characters of a line, for legibility.
_MAX_LINE_LENGTH = 100
# Group title of the options that a shared base class defines.
_GROUP_BY_BASE = {
    ObjectiveConfig: "program",
    CalibratedConfig: "program",
    ClassConfig: "program",
    ProgramConfig: "program",
    PathConfig: "candidate paths",
    CandidateConfig: "candidate paths",
}
# Title of the first group.
_FIRST_GROUP = "network and traffic"
# Title of the group that only --help-all prints in full.
_EXPERT_GROUP = "for experts"
# Titles of the last groups.
_LAST_GROUPS = ("candidate paths", "output", _EXPERT_GROUP)
# Options of the first group.
_NETWORK_OPTIONS = (
    "topology",
    "traffic",
    "default_capacity",
    "attributes",
    "bidirectional",
    "routers",
    "traffic_unit",
)
_EXPERT_OPTIONS = (
    "calibrate",
    "path_weight",
    "path_groups",
    "max_iterations",
    "device",
)
_OUTPUT_OPTIONS = ("out", "json", "resume", "overwrite")
_GROUP_BY_OPTION = dict.fromkeys(_NETWORK_OPTIONS, _FIRST_GROUP) | dict.fromkeys(
    _OUTPUT_OPTIONS, "output"
)
_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}


def command_help(name: str, config: type[Any], epilogue: str = "", *, has_all: bool = True) -> str:
    """Return the text of ``teal NAME --help``, or of ``--help-all``.

    Args:
        name: name of the command.
        config: dataclass of its settings.
        epilogue: text at the end.
        has_all: whether options for experts are described; otherwise only their names are listed.
    """
    # Type and description of each option, by the name of its field.
    width = _width()
    value_types = typing.get_type_hints(config)
    texts = _docstrings(config) | {
        name: option.text for name, option in field_options(config).items()
    }
    # Usage with the required options, and the description of the command.
    required_fields = [field for field in dataclasses.fields(config) if _is_required(field)]
    required = [
        f"--{_option_name(field)} {_metavar(value_types[field.name], is_required=True)}"
        for field in required_fields
    ]
    usage = textwrap.fill(
        " ".join([f"usage: teal {name}", *required, "[options]"]), width, subsequent_indent="    "
    )
    lines = [usage, "", *_paragraphs(inspect.getdoc(config) or "", width)]
    # Options by group.
    groups = _groups(config)
    expert_fields = [] if has_all else groups.pop(_EXPERT_GROUP, [])
    for title, fields in groups.items():
        lines += ["", f"{title}:"]
        for field in fields:
            lines += _option_lines(field, value_types[field.name], texts.get(field.name, ""), width)
    if expert_fields:
        names = ", ".join(f"--{_option_name(field)}" for field in expert_fields)
        lines += [
            "",
            *_paragraphs(f"Options for experts (teal {name} --help-all): {names}.", width),
        ]
    return "\n".join([*lines, *(["", *_paragraphs(epilogue, width)] if epilogue else [])]) + "\n"


def overview(description: str, groups: Mapping[str, Mapping[str, type[Any]]]) -> str:
    """Return the text of ``teal --help``: all commands with the first paragraph of their help.

    Args:
        description: sentences about the program.
        groups: by heading of a group and name of a command: dataclass of the command's settings.
    """
    width = _width()
    lines = ["usage: teal COMMAND [options]      teal COMMAND --help      teal --version", ""]
    lines += _paragraphs(description, width)
    indent = 2 + max(len(name) for commands in groups.values() for name in commands) + 2
    for title, commands in groups.items():
        lines += ["", f"{title}:"]
        for name, config in commands.items():
            text = (inspect.getdoc(config) or "").split("\n\n")[0]
            # First line beside the name of the command, further lines below it.
            wrapped = textwrap.wrap(" ".join(text.split()), width - indent)
            lines.append(f"  {name}".ljust(indent) + wrapped[0])
            lines += [" " * indent + line for line in wrapped[1:]]
    return "\n".join(lines) + "\n"


def check_options(name: str, commands: Mapping[str, Command], arguments: list[str]) -> None:
    """Raise InputError for an option that the command does not have; the message names the command
    to which the option has moved, or the most similar option.

    Args:
        name: name of the command.
        commands: all commands by name.
        arguments: words after the command's name.
    """
    config = commands[name].settings
    # Command to which each former option of this command has moved.
    command_by_old_option = {
        f"--{option.replace('_', '-')}": command_name
        for command_name, command in commands.items()
        for option in command.formerly.get(name, ())
    }
    option_names = {f"--{_option_name(field)}" for field in dataclasses.fields(config)} | {
        "--help",
        "--help-all",
    }
    # Words that begin with dashes must be options of the command.
    for argument in arguments:
        typed = argument.partition("=")[0].replace("_", "-")
        if typed.startswith("--") and typed not in option_names:
            if typed in command_by_old_option:
                raise InputError.invalid(
                    argument,
                    "",
                    f"the option has moved from teal {name} to teal {command_by_old_option[typed]}",
                )
            suggestion = did_you_mean(typed, option_names)
            raise InputError.invalid(argument, "", f"teal {name} has no such option{suggestion}")


def _width() -> int:
    """Return the maximum characters of a line: those of the terminal, at most 100."""
    return min(_MAX_LINE_LENGTH, shutil.get_terminal_size().columns)


def _option_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field's option without dashes; the field ``from_`` is --from."""
    return field.name.rstrip("_").replace("_", "-")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    """Return whether the option of a field must be given, since it has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _groups(config: type[Any]) -> dict[str, list[dataclasses.Field[Any]]]:
    """Return the fields of the settings by the title of their group, in the order of --help."""
    # Titles by field name: from the settings, and from the base class that defines the field.
    command_groups: Mapping[str, tuple[str, ...]] = getattr(config, "GROUPS", {})
    titles = {name: title for title, names in command_groups.items() for name in names}
    by_base = {
        name: title
        for base, title in _GROUP_BY_BASE.items()
        if issubclass(config, base)
        for name in base.__annotations__
    }
    # Group the fields, required ones first.
    groups: dict[str, list[dataclasses.Field[Any]]] = {}
    for field in sorted(dataclasses.fields(config), key=lambda field: not _is_required(field)):
        title = (
            titles.get(field.name)
            or by_base.get(field.name)
            or _GROUP_BY_OPTION.get(field.name, "options")
        )
        title = (
            _EXPERT_GROUP if field.name in _EXPERT_OPTIONS and not _is_required(field) else title
        )
        groups.setdefault(title, []).append(field)
    # Order the groups: network and traffic, those of the settings, then the usual last ones.
    middle_titles = [
        title for title in dict.fromkeys([*command_groups, *groups]) if title not in _LAST_GROUPS
    ]
    order = dict.fromkeys([_FIRST_GROUP, *middle_titles, *_LAST_GROUPS])
    return {title: groups[title] for title in order if title in groups}


def _option_lines(
    field: dataclasses.Field[Any], value_type: Any, text: str, width: int
) -> Iterator[str]:
    """Yield the lines of an option in --help: name, value and default, then its description.

    Args:
        field: field of the option.
        value_type: its type.
        text: its description.
        width: maximum characters of a line.
    """
    is_required = _is_required(field)
    head = f"  --{_option_name(field)} {_metavar(value_type, is_required=is_required)}".rstrip()
    if is_required:
        head += "  (required)"
    elif field.default not in (None, "", (), False, dataclasses.MISSING):
        default = field.default.value if isinstance(field.default, enum.Enum) else field.default
        head += f"  (default: {default})"
    yield from textwrap.wrap(
        head, width, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    yield from textwrap.wrap(
        text, width, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False
    )


def _metavar(value_type: Any, *, is_required: bool) -> str:
    """Return the placeholder of an option's value in --help, such as INT, PATH or a|b; "" for a
    flag.

    Args:
        value_type: type annotation of the option.
        is_required: whether the option must be given.
    """
    # A union has the placeholders of its members, without None.
    if isinstance(value_type, types.UnionType) or typing.get_origin(value_type) is typing.Union:
        parts = [part for part in typing.get_args(value_type) if part is not type(None)]
        return "|".join(_metavar(part, is_required=is_required) for part in parts)
    # A tuple is an option that may be repeated, with the placeholder of one element.
    repeats = typing.get_origin(value_type) is tuple
    if repeats:
        value_type = typing.get_args(value_type)[0]
    if value_type is bool:
        return ""
    if typing.get_origin(value_type) is Literal:
        return "|".join(map(str, typing.get_args(value_type)))
    if isinstance(value_type, type) and issubclass(value_type, enum.Enum):
        return "|".join(str(member.value) for member in value_type)
    return _METAVARS[value_type] + (" [repeat for more]" if repeats and not is_required else "")


def _docstrings(config: type[Any]) -> dict[str, str]:
    """Return the docstring under each field, by its name, from a dataclass and its bases."""
    # Parse the source of each class: the docstring of a field is the text after it.
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, next_statement in zip(body.body, body.body[1:], strict=False):
            is_text = isinstance(next_statement, ast.Expr) and isinstance(
                next_statement.value, ast.Constant
            )
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and is_text
            ):
                texts[statement.target.id] = " ".join(str(next_statement.value.value).split())  # type: ignore[attr-defined]
    return texts


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text wrapped at ``width`` characters, with empty lines between its
    paragraphs.
    """
    for index, paragraph in enumerate(text.split("\n\n")):
        if index:
            yield ""
        yield from textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)


_SCRIPT = """# teal: source <(teal --completion {shell})
{first}_teal() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
  local two="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
  local words=""
  if [[ "$COMP_CWORD" -eq 1 ]]; then words="{names}"
  else
    case "$two" in
{two_words}
    esac
    if [[ -z "$words" ]]; then
      case "$command" in
{one_word}
      esac
    fi
  fi
  if [[ "$word" == -* || "$COMP_CWORD" -le 2 ]]; then
    COMPREPLY=( $(compgen -W "$words" -- "$word") )
  fi
  if [[ ${{#COMPREPLY[@]}} -eq 0 && "$word" != -* ]]; then
    COMPREPLY=( $(compgen -f -- "$word") )
  fi
}}
complete -o filenames -F _teal teal
"""
_ZSH = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit\n"


def completion(commands: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return the completion script of a shell.

    Args:
        commands: commands by their names of one or two words.
        words: words after --completion, which name the shell: bash or zsh.

    Raises:
        InputError: another shell.
    """
    if list(words) not in (["bash"], ["zsh"]):
        raise InputError("--completion", "", "bash or zsh", " ".join(words) or "none")
    # Options of each command, and second words by first word.
    options = {
        name: " ".join(_completion_words(command.settings)) for name, command in commands.items()
    }
    second_words: dict[str, list[str]] = {}
    for name in options:
        if " " in name:
            second_words.setdefault(name.split(" ")[0], []).append(name.split(" ")[1])
    # Cases of the script: options after two words; options or second words after one word.
    two_word_cases = "\n".join(
        f'    "{name}") words="{text}" ;;' for name, text in options.items() if " " in name
    )
    words_by_first_word = {name: text for name, text in options.items() if " " not in name}
    words_by_first_word |= {name: " ".join(second) for name, second in second_words.items()}
    return _SCRIPT.format(
        shell=words[0],
        first=_ZSH if words[0] == "zsh" else "",
        names=" ".join(words_by_first_word),
        two_words=two_word_cases,
        one_word="\n".join(
            f'      {name}) words="{text}" ;;' for name, text in words_by_first_word.items()
        ),
    )


def _completion_words(config: Any) -> list[str]:
    """Return the options of a command with dashes, those of all fields of its settings and two
    common ones, for completion.
    """
    names = [field.name.rstrip("_").replace("_", "-") for field in dataclasses.fields(config)]
    return [*(f"--{name}" for name in names), "--help", "--quiet"]
