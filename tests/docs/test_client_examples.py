"""The examples of docs/how-to/use-the-client.md, run in order against an rmqpy broker."""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
from pathlib import Path

from rmqpy.testing.in_process import name_server_and_broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-the-client.md"


async def run_example(code: str, name_server: str) -> str:
    printed: list[str] = []

    def show(*values: object) -> None:
        printed.append(" ".join(map(str, values)))

    scope: dict[str, object] = {"NAME_SERVER": name_server, "print": show}
    if "BlockingProducer" in code:
        await asyncio.to_thread(exec, code, scope)
    else:
        exec("async def example():\n" + textwrap.indent(code, "    "), scope)
        example = scope["example"]
        assert inspect.iscoroutinefunction(example)
        await example()
    return "\n".join(printed)


def test_every_example_prints_its_result(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert len(examples) == 8

    async def main() -> list[str]:
        async with asyncio.timeout(60), name_server_and_broker(tmp_path) as running:
            return [await run_example(example, running.name_server) for example in examples]

    sent, _, consumed, iterated, pulled, transaction, signed, blocking = asyncio.run(main())
    assert sent.startswith("SEND_OK ") and sent.endswith(" 0")
    assert consumed == "b'order 7'"
    assert "b'sent'" in iterated
    assert "b'order 7'" in pulled and "b'paid'" in pulled and "b'9'" in pulled
    assert transaction == "COMMIT"
    assert signed == "SEND_OK"
    assert blocking.startswith("[b'order 8'")
