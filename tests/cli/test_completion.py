"""Shell completion: generated from the parsers, and tried in bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rmqpy.cli import main
from rmqpy.cli.command_line import every_parser
from rmqpy.cli.completion import nodes_of

BASH = shutil.which("bash")


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(text: str, line: str, folder: Path) -> list[str]:
    """Return what bash offers at the end of ``line``."""
    assert BASH is not None
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    asked = (
        f"{text}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _rmqpy;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [BASH, "--norc", "-c", asked], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_bash_completes_commands_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script("bash", capsys)
    (tmp_path / "store-n0").mkdir()
    cases = {
        "rmqpy sto": ["store"],
        "rmqpy store ": ["inspect", "fsck", "map", "dump", "-h", "--help"],
        "rmqpy why not": ["not-deleted"],
        "rmqpy why --log-json slow": ["slow-start"],
        "rmqpy store fsck --form": ["--format"],
        "rmqpy store fsck --format ": ["text", "json"],
        "rmqpy store fsck sto": ["store-n0"],
        "rmqpy store fsck -c sto": ["store-n0"],
        "rmqpy admin topicSt": ["topicStatus"],
        "rmqpy completion ": ["bash", "zsh", "fish", "-h", "--help"],
        "rmqpy upgrade check store-n0 --det": ["--details"],
    }
    for line, expected in cases.items():
        found = completed(text, line, tmp_path)
        assert found[: len(expected)] == expected, (line, found)


def test_every_command_is_in_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    paths = {node.path for node in nodes_of(every_parser())}
    assert {"/", "/store/fsck", "/why/election", "/admin/topicStatus"} <= paths
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, capsys)
        missing = [path for path in paths if path not in text]
        assert not missing, (shell, missing)


def test_fish_has_descriptions_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    lines = script("fish", capsys).splitlines()
    fsck = [line for line in lines if "'__rmqpy_path /store/fsck'" in line]
    (choices,) = [line for line in fsck if "-l format" in line]
    assert choices.endswith("-x -a 'text json' -d 'default text'")
    assert any("-f -a fsck -d 'check every record" in line for line in lines)
