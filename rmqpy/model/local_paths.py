"""Paths of this machine as users give them: a URI is honoured or refused, never taken for a folder.

``file:/data/store``, ``file:///data/store``, and ``file://localhost/data/store`` are the local path
``/data/store``. Any other scheme (``s3a://``, ``hdfs://``) names a place elsewhere: commands that
can read one ask :func:`is_elsewhere`, all others refuse it. A local folder with such a name can be
given as ``./s3a:/folder``.
"""

from __future__ import annotations

import re
from posixpath import realpath
from typing import Final

from rmqpy.model.errors import ConfigError

__all__ = ["is_elsewhere", "local_path", "without_slash"]

URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
LOCAL_HOSTS: Final = ("", "localhost")


def is_elsewhere(text: str) -> bool:
    """Return whether a path is a URI of another scheme than ``file``."""
    return URI.match(text) is not None and text.partition(":")[0].lower() != "file"


def without_slash(uri: str) -> str:
    """Return a URI of a place elsewhere without a slash at its end.

    Raise ConfigError if it names nothing but its scheme (``s3://``).
    """
    place = uri.rstrip("/")
    if place.endswith(":"):
        raise ConfigError(
            f"{uri}: found a URI without a place, expected one such as {place}//BUCKET/FOLDER"
        )
    return place


def local_path(text: str) -> str:
    """Return the absolute path, without symbolic links, of a path or ``file:`` URI.

    Raise ConfigError for an empty text, and for a URI of another scheme or of another host.
    """
    if not text:
        raise ConfigError("found an empty path, expected a local path; give one")
    if URI.match(text) is None:
        return realpath(text)
    from urllib.parse import unquote, urlsplit  # few paths are URIs

    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        raise ConfigError(
            f"{text}: found a URI of {parts.scheme}, expected a local path or file:///PATH; mount"
            " or copy the data, and give its local path"
        )
    if parts.netloc.lower() not in LOCAL_HOSTS or parts.query or parts.fragment:
        raise ConfigError(
            f"{text}: found a URI with a host, a query, or a fragment, expected file:///PATH; give"
            " the local path"
        )
    return realpath(unquote(parts.path))
