"""The example of docs/how-to/check-messages-with-a-hook.md, as an installed package."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from harness.broker import stored_message
from harness.hooks import install_hooks

from rmqpy.broker.processors.put_hooks import ENTRY_POINT_GROUP
from rmqpy.testing.harness import memory_broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "check-messages-with-a-hook.md"


def test_the_hook_of_the_page_refuses_and_marks_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    (project,) = re.findall(r"```toml\n(.*?)```", text, flags=re.S)
    points = tomllib.loads(project)["project"]["entry-points"][ENTRY_POINT_GROUP]
    (line,) = re.findall(r"^rmqpyPutMessageHooks=(.*)$", text, flags=re.M)
    install_hooks(tmp_path, monkeypatch, "shop_hooks", code, points)
    harness = memory_broker(rmqpy_put_message_hooks=line)
    refused = harness.send(topic="orders")
    assert f"code {refused.code} and `{refused.remark}`" in text.replace("\n", " ")
    assert harness.store.log.max_offset == 0
    assert harness.send(topic="orders", properties="KEYS\x01order-7").code == 0
    assert stored_message(harness.store, 0).properties["checkedBy"] == "shop"
    assert harness.send(topic="others").code == 0
