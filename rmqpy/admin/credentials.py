"""Find the account that signs an administrator's commands, as mqadmin does.

=================================================  ==============================================
source                                             content
=================================================  ==============================================
environment ``RMQPY_ACCESS_KEY``, ``…_SECRET_KEY``  the two keys; never on a command line, which
                                                   every user of the machine can read
``--credentials FILE``                             YAML with ``accessKey`` and ``secretKey``
``$ROCKETMQ_HOME/conf/tools.yml``                  the same; Java's default, if the file exists
=================================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rmqpy.acl.plain_acl_file import parse_yaml
from rmqpy.acl.signature import Credentials
from rmqpy.model.errors import ConfigError


def find_credentials(file: str | None, environment: Mapping[str, str]) -> Credentials | None:
    """Return the account, or None if none is configured and requests are unsigned.

    Raise ConfigError if an account is incomplete or cannot be read.
    """
    access_key = environment.get("RMQPY_ACCESS_KEY")
    secret_key = environment.get("RMQPY_SECRET_KEY")
    if access_key and secret_key:
        return Credentials(access_key, secret_key)
    if access_key or secret_key:
        raise ConfigError("RMQPY_ACCESS_KEY and RMQPY_SECRET_KEY must be set together")
    if file is not None:
        return read_credentials(Path(file))
    home = environment.get("ROCKETMQ_HOME")
    path = Path(home) / "conf" / "tools.yml" if home else None
    return read_credentials(path) if path is not None and path.is_file() else None


def read_credentials(path: Path) -> Credentials:
    """Return the account of a file. Raise ConfigError if it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the credentials cannot be read: {error}") from error
    value = parse_yaml(text, str(path))
    table = value if isinstance(value, dict) else {}
    access_key, secret_key = table.get("accessKey"), table.get("secretKey")
    if not isinstance(access_key, str) or not isinstance(secret_key, str):
        raise ConfigError(f"{path}: accessKey and secretKey are required")
    return Credentials(access_key, secret_key)
