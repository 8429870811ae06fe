"""The commands and programs of the how-to guides for Spark."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.pipeline import LiveCluster

from rmqpy.cli import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
AUDITS = (HOW_TO / "audit-with-spark.md").read_text(encoding="utf-8")
PROGRAMS = (HOW_TO / "use-rocketmq-data-in-spark.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ rmqpy (.*)$", AUDITS, re.MULTILINE)
LOOKUPS = re.findall(r"^\$ rmqpy (.*)$", PROGRAMS, re.MULTILINE)
BLOCKS = re.findall(r"^```python\n(.*?)^```", PROGRAMS, re.MULTILINE | re.DOTALL)
STATEMENTS = [
    statement
    for block in re.findall(r"^```sql\n(.*?)^```", PROGRAMS, re.MULTILINE | re.DOTALL)
    for statement in block.split(";")
    if statement.strip()
]
STORE = "/var/lib/rocketmq/store"
REPLICA = "/mnt/replica/store"
CONF = """\
storePathRootDir={root}
mappedFileSizeCommitLog=65536
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=100
maxIndexNum=400
enableDLegerCommitLog=true
dLegerGroup=g
dLegerPeers=n1-127.0.0.1:40911
dLegerSelfId=n1
"""


def test_the_guide_has_commands() -> None:
    assert len(COMMANDS) >= 20 and "pipeline doctor" in COMMANDS


@pytest.mark.spark
def test_the_commands_of_the_guide_succeed(
    spark: SparkSession,
    copy_of: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    places = {
        STORE: str(copy_of("C-upgraded-v497/n0")),
        REPLICA: str(copy_of("C-upgraded-v497/n1")),
        "/data": str(tmp_path),
        "s3://": "memory://",
    }
    memory = pytest.importorskip("fsspec").filesystem("memory")
    for place in ("/backups/broker-a/store", "/backups/store"):
        for path in Path(places[STORE]).rglob("*"):
            if path.is_file():
                memory.pipe_file(f"{place}/{path.relative_to(places[STORE])}", path.read_bytes())

    def placed(word: str) -> str:
        for documented, place in places.items():
            word = word.replace(documented, place)
        return word

    assert main(["upgrade", "manifest", places[REPLICA], "--format", "json"]) == 0
    (tmp_path / "n1.json").write_text(capsys.readouterr().out)
    (tmp_path / "broker.conf").write_text(CONF.format(root=places[REPLICA]))
    for command in COMMANDS:
        if "/data/messages" in command and "--to" in command:
            shutil.rmtree(tmp_path / "messages", ignore_errors=True)  # of the export before
        assert main([*map(placed, shlex.split(command))]) == 0, command
        assert capsys.readouterr().out or "NOT crcOk" in command, command
    assert memory.exists("/lake/messages/_SUCCESS")


@pytest.mark.spark
def test_the_programs_of_the_guide_produce_rows(
    spark: SparkSession,
    live: LiveCluster,
    store_of: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live.topic(name="orders")
    live.topic(name="copies")
    live.send("orders", [b"%d" % number for number in range(9)])
    names: dict[str, Any] = {"spark": spark}
    for table in ("stored", "orders"):  # of the other cluster
        spark.sql(f"DROP TABLE IF EXISTS {table}")

    def placed(text: str) -> str:
        text = text.replace(STORE, str(store_of("A-classic-clean-v497")))
        return text.replace("/data", str(tmp_path)).replace("127.0.0.1:9876", live.namesrv.address)

    for block in BLOCKS:
        exec(compile(placed(block), "docs/how-to/use-rocketmq-data-in-spark.md", "exec"), names)
    assert len(BLOCKS) == 7 and names["messages"].count() > 0
    look_up = names["look_up"]
    assert look_up(topic="Normal", queueId=0, startingOffset=3, endingOffset=5).count() == 2
    queue = {"topic": "Normal", "queueId": 0, "startingTimestamp": 1}
    assert look_up(**queue, timestampLookup=True).count() > 2
    (key,) = look_up(topic="Keyed").where("keys IS NOT NULL").limit(1).select("keys").first()
    assert look_up(topic="Keyed", key=key.split(" ")[0]).count() > 0
    (command,) = LOOKUPS
    command = placed(command).replace("=orders", "=Keyed").replace("order-17", key.split(" ")[0])
    assert main(shlex.split(command)) == 0
    assert "|Keyed" in capsys.readouterr().out
    assert names["counts"].count() > 0
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 9
    reader = spark.read.format("rocketmq").option("nameServer", live.namesrv.address)
    copies = reader.option("topic", "copies").load().collect()
    assert len(copies) == 10
    assert {row["properties"]["from"] for row in copies} <= {"Normal", "Delay"}
    for statement in STATEMENTS:
        spark.sql(placed(statement))
    keys = spark.sql("SELECT keys FROM orders WHERE keys = 'order-1'").collect()
    assert len(keys) == 1 and len(STATEMENTS) == 2
