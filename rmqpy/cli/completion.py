"""``rmqpy completion bash | zsh | fish``: a script that completes commands, options, and choices.

The script is generated from the parsers, so it has exactly the commands of this version, and needs
no start of rmqpy for a completion.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from attrs import define

from rmqpy.cli.parsing import EXIT_DONE, add_log_options

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands

ROOT = "/"
"""The path of ``rmqpy`` itself; that of ``rmqpy store fsck`` is ``/store/fsck``."""


def add_commands(commands: Commands) -> None:
    completion = commands.add_parser("completion", help="print a script for shell completion")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    add_log_options(completion)
    completion.set_defaults(command=_completion)


def _completion(options: argparse.Namespace) -> int:
    from rmqpy.cli.command_line import every_parser

    nodes = list(nodes_of(every_parser()))
    lines = {"bash": bash_lines, "zsh": zsh_lines, "fish": fish_lines}[options.shell]
    print("\n".join(lines(nodes)))
    return EXIT_DONE


@define(slots=True, frozen=True, kw_only=True)
class CompletionOption:
    """One option: its spellings, its choices (empty: any value), and whether it has a value."""

    names: tuple[str, ...]
    choices: tuple[str, ...]
    has_value: bool
    help: str


@define(slots=True, frozen=True, kw_only=True)
class CompletionNode:
    """What can follow the words of ``path``: commands with their help, options, and values."""

    path: str
    commands: tuple[tuple[str, str], ...] = ()
    options: tuple[CompletionOption, ...] = ()
    choices: tuple[str, ...] = ()


def nodes_of(parser: argparse.ArgumentParser, path: str = ROOT) -> Iterator[CompletionNode]:
    """Yield the node of a parser and of all parsers below it."""
    commands: list[tuple[str, str]] = []
    options: list[CompletionOption] = []
    choices: list[str] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = list(action.choices.items())
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            commands = [(name, texts.get(name, each.description or "")) for name, each in below]
        elif action.option_strings:
            options.append(
                CompletionOption(
                    names=tuple(action.option_strings),
                    choices=tuple(map(str, action.choices or ())),
                    has_value=action.nargs != 0,
                    help=action.help or "",
                )
            )
        else:
            choices += map(str, action.choices or ())
    yield CompletionNode(
        path=path, commands=tuple(commands), options=tuple(options), choices=tuple(choices)
    )
    for name, each in below:
        yield from nodes_of(each, f"{path.rstrip('/')}/{name}")


def bash_lines(nodes: list[CompletionNode]) -> Iterator[str]:
    """Yield the script for bash."""
    yield "# Completion of rmqpy: source <(rmqpy completion bash)"
    yield from _find_lines(nodes)
    yield "_rmqpy() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" offered files'
    yield '  _rmqpy_find "${COMP_WORDS[@]:1:COMP_CWORD-1}"'
    yield '  COMPREPLY=($(compgen -W "$offered" -- "$current"))'
    yield '  if [ -n "$files" ] && [[ "$current" != -* ]]; then'
    yield '    COMPREPLY+=($(compgen -f -- "$current"))'
    yield "  fi"
    yield "}"
    yield "complete -o filenames -F _rmqpy rmqpy"


def zsh_lines(nodes: list[CompletionNode]) -> Iterator[str]:
    """Yield the script for zsh, to be sourced, or to be found in ``fpath`` as ``_rmqpy``."""
    yield "#compdef rmqpy"
    yield "# Completion of rmqpy: source <(rmqpy completion zsh), or a file _rmqpy in $fpath"
    yield from _find_lines(nodes)
    yield "_rmqpy() {"
    yield "  local offered files"
    yield '  _rmqpy_find "${(@)words[2,CURRENT-1]}"'
    yield "  compadd -- ${=offered}"
    yield '  if [[ -n "$files" && "${words[CURRENT]}" != -* ]]; then'
    yield "    _files"
    yield "  fi"
    yield "}"
    yield 'if [[ "${funcstack[1]}" == _rmqpy ]]; then'
    yield '  _rmqpy "$@"'
    yield "else"
    yield "  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
    yield "  compdef _rmqpy rmqpy"
    yield "fi"


def _find_lines(nodes: list[CompletionNode]) -> Iterator[str]:
    """Yield a function, for bash and zsh, that sets ``offered`` and ``files`` to what may follow
    its arguments: the words before the one that is completed.
    """
    yield "_rmqpy_find() {"
    yield "  local at=/ before= word"
    yield "  offered= files=1"
    yield '  for word in "$@"; do'
    yield "    before=$word"
    yield '    case "${at%/}/$word" in'
    for path in (node.path for node in nodes if node.path != ROOT):
        yield f"      {quote(path)}) at={quote(path)} ;;"
    yield "    esac"
    yield "  done"
    yield '  case "$at $before" in'
    for node in nodes:
        for option in node.options:
            if option.has_value:
                pattern = "|".join(quote(f"{node.path} {name}") for name in option.names)
                words = quote(" ".join(option.choices))
                ended = f"offered={words} files=" if option.choices else "offered="
                yield f"    {pattern}) {ended} ;;"
    yield "    *)"
    yield '      case "$at" in'
    for node in nodes:
        names = [name for name, _ in node.commands]
        names += [*node.choices, *(name for option in node.options for name in option.names)]
        ended = " files=" if node.commands or node.choices else ""
        yield f"        {quote(node.path)}) offered={quote(' '.join(names))}{ended} ;;"
    yield "      esac"
    yield "      ;;"
    yield "  esac"
    yield "}"


def fish_lines(nodes: list[CompletionNode]) -> Iterator[str]:
    """Yield the script for fish."""
    yield "# Completion of rmqpy: rmqpy completion fish > ~/.config/fish/completions/rmqpy.fish"
    yield "function __rmqpy_path"
    yield "  set -l path /"
    yield "  for word in (commandline -opc)[2..-1]"
    yield "    switch (string trim -r -c / $path)/$word"
    yield f"      case {' '.join(quote(node.path) for node in nodes if node.path != ROOT)}"
    yield "        set path (string trim -r -c / $path)/$word"
    yield "    end"
    yield "  end"
    yield "  test $path = $argv[1]"
    yield "end"
    for node in nodes:
        when = f"complete -c rmqpy -n {quote(f'__rmqpy_path {node.path}')}"
        for name, text in node.commands:
            yield f"{when} -f -a {quote(name)} -d {quote(text)}"
        if node.choices:
            yield f"{when} -f -a {quote(' '.join(node.choices))}"
        for option in node.options:
            parts = [when, *map(_fish_name, option.names)]
            if option.has_value:
                parts.append(f"-x -a {quote(' '.join(option.choices))}" if option.choices else "-r")
            yield " ".join([*parts, f"-d {quote(option.help)}"])


def _fish_name(name: str) -> str:
    return f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
