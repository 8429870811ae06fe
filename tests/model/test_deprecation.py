"""Old public names work for one more version, with a warning that has the new name."""

from __future__ import annotations

import importlib

import pytest

NAMES = [
    ("rmqpy.client", "ReceivedMessage", "MessageExt"),
    (
        "rmqpy.client.consuming.rebalance",
        "averagely_by_circle",
        "allocate_averagely_by_circle",
    ),
    ("rmqpy.model.errors", "RemoteFault", "RemoteProtocolError"),
    ("rmqpy.model.errors", "Refusal", "RequestRejectedError"),
    ("rmqpy.model.errors", "StoreFault", "StoreError"),
    ("rmqpy.model.errors", "ConfigFault", "ConfigError"),
    ("rmqpy.model.errors", "NetworkFault", "NetworkError"),
    ("rmqpy.testing.java", "ClientFault", "ClientError"),
    ("rmqpy.testing.java", "JavaUnavailable", "JavaUnavailableError"),
    ("rmqpy.testing.processes", "ProcessFault", "ProcessError"),
]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_is_the_new_object_and_warns(module: str, old: str, new: str) -> None:
    imported = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated: use {module}\.{new}"):
        assert getattr(imported, old) is getattr(imported, new)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        importlib.import_module("rmqpy.client").NoSuchName  # noqa: B018
