"""The files that an option names: plans, manifests, keys, tokens, and certificates."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rmqpy.model.errors import RmqError
from rmqpy.model.os_errors import sentence_of

if TYPE_CHECKING:
    from rmqpy.audit.replicas.manifest import Manifest


def read_given(path: str, what: str) -> bytes:
    """Return the content of the file ``path``, which is ``what`` (``the plan``)."""
    from pathlib import Path

    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise RmqError(f"{what} cannot be read: {sentence_of(error)}") from None


def read_secret(path: str | None) -> bytes | None:
    """Return the secret of ``--key``, or None without one. Raise RmqError if it is empty."""
    if path is None:
        return None
    secret = read_given(path, "the key").strip()
    if not secret:
        raise RmqError(f"{path}: found an empty file, expected a secret; give another --key")
    return secret


def read_token(path: str | None) -> str:
    """Return the token of ``--token-file``, or "" without one."""
    if path is None:
        return ""
    try:
        return read_given(path, "the token").decode("ascii").strip()
    except UnicodeDecodeError:
        raise RmqError(
            f"{path}: found other bytes than text, expected a token in ASCII; give another"
            " --token-file"
        ) from None


def read_plan(path: str) -> dict[str, Any]:
    """Return the JSON form of a plan, not yet checked. Raise RmqError if it is not one."""
    raw = read_given(path, "the plan")
    try:
        value = json.loads(raw)
        if not isinstance(value, dict) or not {"id", "steps", "nodes"} <= value.keys():
            raise ValueError("the members of a plan are missing")
    except ValueError as error:
        raise RmqError(
            f"{path}: found no plan ({error}), expected the file that plan --out or leave --out"
            " wrote; give that file, or plan again"
        ) from None
    return value


def read_manifest(path: str) -> Manifest:
    """Return a manifest. Raise RmqError if the file does not contain one."""
    from rmqpy.audit.replicas.manifest import Manifest

    raw = read_given(path, "the manifest")
    try:
        return Manifest.decode(raw)
    except RmqError as error:
        raise RmqError(
            f"{path}: found no manifest ({error}), expected the output of rmqpy upgrade manifest"
            " --format json; give that file"
        ) from None


def check_readable(path: str | None, what: str) -> None:
    """Raise RmqError if ``path`` is given and cannot be read."""
    if path is not None:
        read_given(path, what)


def check_certificate_target(path: str | None, key: bytes | None) -> None:
    """Raise RmqError if an unsigned certificate would replace a signed one."""
    if path is None or key:
        return
    from pathlib import Path

    from rmqpy.audit.replicas.certificate import is_signed

    target = Path(path)
    if target.is_file() and is_signed(target.read_bytes()):
        raise RmqError(
            f"{path} is a signed certificate: give --key to sign the new one too, or another --out"
        )
