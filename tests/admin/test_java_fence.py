"""When a group with Java brokers is level: their ends have not moved for a while. The brokers are
played here; ``tests/interop/test_fence.py`` and ``tests/interop/test_takeover.py`` have real ones.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from rmqpy.admin.commands import fence, promote
from rmqpy.admin.commands.fence import MemberFence
from rmqpy.model.errors import ConnectFailedError, RequestTimeoutError, RmqError

JAVA = MemberFence("java:1", "java", 100, 100, 0, None)
RMQPY = MemberFence("rmqpy:1", "SLAVE", 100, 100, 0, 60_000, broker_id=1)


def test_equal_ends_that_have_moved_are_not_level_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = {each.address: each for each in (JAVA, RMQPY)}

    async def state(_call: object, address: str, _seconds: int | None) -> MemberFence:
        return members[address]

    monkeypatch.setattr(fence, "fence_member", state)
    call: Any = SimpleNamespace()
    _, reasons = asyncio.run(fence.wait_until_level(call, list(members), 0, 35))
    assert len(reasons) == 1
    assert "the end of java:1 has not moved for 0 s, expected 35 s" in reasons[0]
    assert "stop such producers" in reasons[0]


def test_a_java_slave_keeps_its_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts no messages, and may become the master afterwards."""
    assert JAVA.needs_permission and not RMQPY.needs_permission
    slave = evolve(JAVA, is_java_slave=True)
    changed = []

    async def permission(_call: object, address: str, _permission: str) -> None:
        changed.append(address)

    async def state(_call: object, _address: str, _seconds: int | None) -> MemberFence:
        return RMQPY

    monkeypatch.setattr(fence, "set_permission", permission)
    monkeypatch.setattr(fence, "fence_member", state)
    call: Any = SimpleNamespace()
    asyncio.run(fence.open_quietly(call, [slave, RMQPY]))
    assert changed == []
    asyncio.run(fence.open_quietly(call, [JAVA, RMQPY]))
    assert changed == ["java:1"]


def test_a_java_master_that_moves_while_its_stop_is_awaited_ends_the_promotion() -> None:
    async def moved(_address: str) -> dict[str, str]:
        return {"commitLogMaxOffset": "164"}

    call: Any = SimpleNamespace(admin=SimpleNamespace(runtime_info=moved), show=lambda _text: None)
    takeover = promote.Takeover(target=RMQPY, master=JAVA, others=(), role="ASYNC_MASTER")
    with pytest.raises(RmqError, match="its end moved from 100 to 164; nothing was changed"):
        asyncio.run(promote._release(call, takeover, 60))


def test_a_java_master_that_answers_late_is_not_taken_for_stopped() -> None:
    answers = iter([RequestTimeoutError("late"), ConnectFailedError("refused")])

    async def late(_address: str) -> dict[str, str]:
        raise next(answers)

    call: Any = SimpleNamespace(admin=SimpleNamespace(runtime_info=late), show=lambda _text: None)
    takeover = promote.Takeover(target=RMQPY, master=JAVA, others=(), role="ASYNC_MASTER")
    asyncio.run(promote._release(call, takeover, 60))
    assert next(answers, None) is None, "it was asked again"
