"""Completion of commands and options in a shell: ``source <(teal --completion bash)``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from teal.errors import InputError

_SCRIPT = """# teal: source <(teal --completion {shell})
{first}_teal() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" two="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
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
  if [[ "$word" == -* || "$COMP_CWORD" -le 2 ]]; then COMPREPLY=( $(compgen -W "$words" -- "$word") ); fi
  if [[ ${{#COMPREPLY[@]}} -eq 0 && "$word" != -* ]]; then COMPREPLY=( $(compgen -f -- "$word") ); fi
}}
complete -o filenames -F _teal teal
"""
_ZSH = "autoload -Uz +X compinit bashcompinit && compinit && bashcompinit\n"


def completion(commands: Mapping[str, Any], words: Sequence[str]) -> str:
    """The script for a shell.

    Args:
        commands: with their settings, by name of one or two words.
        words: the shell: bash or zsh.

    Raises:
        InputError: another shell.
    """
    if list(words) not in (["bash"], ["zsh"]):
        raise InputError("--completion", "", "bash or zsh", " ".join(words) or "none")
    options = {name: " ".join(_options(command.config)) for name, command in commands.items()}
    inner: dict[str, list[str]] = {}
    for name in options:
        if " " in name:
            inner.setdefault(name.split(" ")[0], []).append(name.split(" ")[1])
    two = "\n".join(f'    "{name}") words="{text}" ;;' for name, text in options.items() if " " in name)
    one = {name: text for name, text in options.items() if " " not in name}
    one |= {name: " ".join(part) for name, part in inner.items()}
    return _SCRIPT.format(
        shell=words[0], first=_ZSH if words[0] == "zsh" else "", names=" ".join(one), two_words=two,
        one_word="\n".join(f'      {name}) words="{text}" ;;' for name, text in one.items()),
    )  # fmt: skip


def _options(config: Any) -> list[str]:
    names = [field.name.rstrip("_").replace("_", "-") for field in dataclasses.fields(config)]
    return [*(f"--{name}" for name in names), "--help", "--quiet"]
