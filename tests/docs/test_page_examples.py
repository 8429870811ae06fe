"""Examples on pages that are neither tutorials nor programs: commands, settings, small files."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmqpy.acl.plain_acl_file import parse_access_file
from rmqpy.cli import main
from rmqpy.config.loading import load_broker_configuration
from rmqpy.pipeline.lake.masking import read_masking
from rmqpy.suite.suite_file import read_suite
from rmqpy.testing import Broker

DOCS = Path(__file__).parents[2] / "docs"
STORE = "/var/lib/rocketmq/store"
EXIT_NO = 2


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics=["Orders"]) as running:
        running.send("Orders", b"order 7", keys="order-7")
        yield running


@pytest.mark.slow
def test_the_commands_of_find_the_cause_answer(
    broker: Broker,
    store_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """docs/how-to/find-the-cause.md, at a store of Java and a running broker."""
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={store_of('A-classic-clean-v497')}\n")
    places = {
        STORE: str(store_of("A-classic-clean-v497")),
        "broker.conf": str(tmp_path / "broker.conf"),
    }
    places |= {f"n{each}-store": str(store_of(f"C-upgraded-v497/n{each}")) for each in range(3)}
    places |= {f"127.0.0.1:109{each}1": broker.address for each in (1, 2, 3)}
    commands = "".join(blocks("how-to/find-the-cause.md", "console"))
    found = re.findall(r"^\$ rmqpy (.*)$", commands, re.MULTILINE)
    assert len(found) >= 9
    for command in found:
        words = [places.get(word, word) for word in shlex.split(command)]
        code = main(words)
        captured = capsys.readouterr()
        assert code in (0, EXIT_NO), f"{command}: {captured.err}"
        assert captured.out, command


def test_the_settings_of_pages_are_accepted(tmp_path: Path) -> None:
    """The secure and the fast profile are read without a note about an unknown key."""
    for page, language in (
        ("how-to/secure-a-broker.md", "properties"),
        ("how-to/replace-a-leader-faster.md", ""),
    ):
        [text] = blocks(page, language)
        for name in ("server.pem", "server.key", "ca.pem"):
            (tmp_path / name).write_text("", encoding="utf-8")
        path = tmp_path / "broker.conf"
        path.write_text(text.replace("/etc/rmqpy", str(tmp_path)), encoding="utf-8")
        loaded = load_broker_configuration(path, {"storePathRootDir": str(tmp_path / "store")})
        assert loaded.unknown == {}


def test_the_accounts_of_the_secure_profile_are_accepted() -> None:
    [text] = blocks("how-to/secure-a-broker.md", "yaml")
    found = parse_access_file(text, "plain_acl.yml")
    assert [account.access_key for account in found.accounts] == ["orders-service", "operator"]


def test_the_rules_of_masking_are_accepted(tmp_path: Path) -> None:
    """docs/reference/pipeline.md"""
    [text] = blocks("reference/pipeline.md", "toml")
    (tmp_path / "mask.key").write_text("0123456789abcdef", encoding="utf-8")
    (tmp_path / "mask.toml").write_text(text, encoding="utf-8")
    assert read_masking(str(tmp_path / "mask.toml")) is not None


def test_the_suite_file_is_accepted(tmp_path: Path, copy_of: Callable[[str], Path]) -> None:
    """docs/how-to/run-an-upgrade-suite.md"""
    [text, hooks] = blocks("how-to/run-an-upgrade-suite.md", "toml")
    for name in ("master", "slave"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store").symlink_to(copy_of("A-classic-clean-v497"))
    (tmp_path / "master" / "broker.conf").write_text("", encoding="utf-8")
    (tmp_path / "suite.toml").write_text(text, encoding="utf-8")
    assert [store.name for store in read_suite(tmp_path / "suite.toml").stores] == ["orders"]
    others = text[text.index("[hooks]") : text.index("[[store]]")]
    (tmp_path / "suite.toml").write_text(text.replace(others, hooks), encoding="utf-8")
    assert len(read_suite(tmp_path / "suite.toml").hooks) == 3


@pytest.mark.slow
def test_the_lifespan_of_the_client_page_sends(broker: Broker) -> None:
    """docs/reference/client.md"""
    [code] = blocks("reference/client.md", "python")
    names: dict[str, object] = {}
    exec(code.replace("127.0.0.1:9876", broker.name_server), names)
    lifespan = names["lifespan"]

    async def use() -> str:
        from rmqpy.client import Message, Producer

        assert callable(lifespan)
        async with lifespan() as state:
            producer = state["producer"]
            assert isinstance(producer, Producer)
            return (await producer.send(Message(topic="Orders", body=b"order 8"))).status.value

    assert asyncio.run(use()) == "SEND_OK"
