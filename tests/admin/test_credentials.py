"""The sources of the account of an administrator."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqpy.acl.signature import Credentials
from rmqpy.admin.credentials import find_credentials
from rmqpy.model.errors import ConfigError


def test_the_environment_overrides_the_file_and_javas_default_file(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: from-home\nsecretKey: 12345678\n")
    other = tmp_path / "other.yml"
    other.write_text("accessKey: from-file\nsecretKey: s\n")
    home = {"ROCKETMQ_HOME": str(tmp_path)}
    keys = {"RMQPY_ACCESS_KEY": "from-env", "RMQPY_SECRET_KEY": "s"}
    assert find_credentials(str(other), {**home, **keys}) == Credentials("from-env", "s")
    assert find_credentials(str(other), home) == Credentials("from-file", "s")
    assert find_credentials(None, home) == Credentials("from-home", "12345678")
    assert find_credentials(None, {"ROCKETMQ_HOME": str(tmp_path / "none")}) is None
    assert find_credentials(None, {}) is None


def test_an_incomplete_account_is_refused(tmp_path: Path) -> None:
    half = tmp_path / "half.yml"
    half.write_text("accessKey: a\n")
    with pytest.raises(ConfigError, match="secretKey"):
        find_credentials(str(half), {})
    with pytest.raises(ConfigError, match="together"):
        find_credentials(None, {"RMQPY_ACCESS_KEY": "a"})
    with pytest.raises(ConfigError, match="cannot be read"):
        find_credentials(str(tmp_path / "none"), {})
