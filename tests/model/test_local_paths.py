"""A URI is honoured or refused, and never turned into a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.model.errors import ConfigError
from rmqpy.model.local_paths import local_path


def test_paths_and_file_uris_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = str(tmp_path.resolve())
    for text in (root, ".", f"file:{root}", f"file://{root}", f"FILE://localhost{root}"):
        assert local_path(text) == root
    assert local_path(f"file://{root}/a%20b") == f"{root}/a b"
    assert local_path("./s3a:/folder") == f"{root}/s3a:/folder"
    assert local_path("n0:x") == f"{root}/n0:x"


@pytest.mark.parametrize(
    "text",
    ["s3a://bucket/x", "hdfs://host/x", "gs:/x", "https://h/x", "file://host/x", "file:///x?y=1"],
)
def test_other_uris_are_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"found a URI .*, expected .*; "):
        local_path(text)
    assert not [*tmp_path.iterdir()]


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="found an empty path"):
        local_path("")
