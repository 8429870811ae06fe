"""The secret that the members of a DLedger group share, if the operator has given them one."""

from __future__ import annotations

import os
import stat
from typing import Final

from rmqpy.config.loading import StoreSettings
from rmqpy.model.errors import ConfigError

SECRET_BYTES_MIN: Final = 16


def group_secret(settings: StoreSettings) -> bytes | None:
    """Return the secret of ``rmqpyGroupSecret`` or in ``rmqpyGroupSecretFile``, without white space
    around it; None if neither is set. Raises ConfigError.
    """
    path = settings.rmqpy_group_secret_file
    if path and settings.rmqpy_group_secret:
        raise ConfigError(
            "rmqpyGroupSecret and rmqpyGroupSecretFile are both set: expected one of them; remove"
            " the other"
        )
    if path:
        source = f"rmqpyGroupSecretFile={path}"
        secret = _read(path)
    elif settings.rmqpy_group_secret:
        source = "rmqpyGroupSecret"
        secret = settings.rmqpy_group_secret.strip().encode()
    else:
        return None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(
            f"{source} has {len(secret)} bytes, expected at least {SECRET_BYTES_MIN}: use a random"
            " text, such as the output of openssl rand -hex 32"
        )
    return secret


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read().strip()
    except OSError as error:
        raise ConfigError(
            f"rmqpyGroupSecretFile={path} cannot be read: {error.strerror}; expected a file with"
            " the secret of the group, the same on every member"
        ) from error
    if mode & 0o007:
        raise ConfigError(
            f"rmqpyGroupSecretFile={path} has mode {mode:04o}: expected a file that other users"
            f" cannot read; run chmod 0640 {path}"
        )
    return secret
