"""``rmqpy completion bash | zsh | fish``: a script that completes commands, options, and choices.

The script is generated from the parsers, so it has exactly the commands of this version, and needs
no start of rmqpy for a completion. zsh reads the script of bash.
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
    print("\n".join(fish_lines(nodes) if options.shell == "fish" else bash_lines(nodes)))
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
    """Yield the script for bash and zsh."""
    yield "# Completion of rmqpy. bash: source <(rmqpy completion bash); zsh: the same with zsh."
    yield 'if [ -n "$ZSH_VERSION" ]; then'
    yield "  autoload -U +X compinit bashcompinit && compinit && bashcompinit"
    yield "fi"
    yield "_rmqpy() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield "  local path=/ words= files=1 i"
    yield "  for ((i = 1; i < COMP_CWORD; i++)); do"
    yield '    case "${path%/}/${COMP_WORDS[i]}" in'
    for path in (node.path for node in nodes if node.path != ROOT):
        yield f"      {quote(path)}) path={quote(path)} ;;"
    yield "    esac"
    yield "  done"
    yield '  case "$path $before" in'
    for node in nodes:
        for option in node.options:
            if option.has_value:
                pattern = "|".join(quote(f"{node.path} {name}") for name in option.names)
                words = quote(" ".join(option.choices))
                ended = f"words={words} files=" if option.choices else "words="
                yield f"    {pattern}) {ended} ;;"
    yield "    *)"
    yield '      case "$path" in'
    for node in nodes:
        names = [name for name, _ in node.commands]
        names += [*node.choices, *(name for option in node.options for name in option.names)]
        ended = " files=" if node.commands or node.choices else ""
        yield f"        {quote(node.path)}) words={quote(' '.join(names))}{ended} ;;"
    yield "      esac"
    yield "      ;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield '  if [ -n "$files" ] && [[ "$current" != -* ]]; then'
    yield '    COMPREPLY+=($(compgen -f -- "$current"))'
    yield "  fi"
    yield "}"
    yield "complete -o filenames -F _rmqpy rmqpy"


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
