"""Write the golden stores of RocketMQ 5.3.3 (tests/golden/README.md).

Run ``python tests/golden/v533/write.py FOLDER [NAME...]`` from the top of the project. It needs
Java and GNU tar, and Maven for the first run; it writes ``NAME.tar.xz`` and ``NAME.json.xz`` to
FOLDER. Nothing here imports a reader of rmqpy: what the stores contain is known from the Java
client alone.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import define, field

from rmqpy.testing.java import JavaHome, JavaSite
from rmqpy.testing.ports import BROKER_PORT_COUNT, PortBlock, free_port_block
from rmqpy.testing.processes import BrokerSpec, ServerProcess, group_settings

VERSION = "5.3.3"
SMALL = {
    "mappedFileSizeTimerLog": "1100",
    "mapperFileSizeBatchConsumeQueue": "4600",
    "compactionMappedFileSize": "65536",
    "compactionCqMappedFileSize": "4600",
    "timerRollWindowSlot": "3600",
}
"""Sizes of files in bytes; timer messages roll at an hour."""
LONG_TOPIC = "a-topic-of-a-hundred-letters-" + 71 * "t"
LONG_GROUP = "a-group-of-forty-letters-" + 15 * "g"
"""Their retry topic of POP has more than 127 letters: its messages are records of version 2."""
ROLES_WAIT_S = 60
CLIENT_SECONDS_MAX = 900
CHECKS = {
    "maxMessageSize": "32768",
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "1000",
}
ROUTED = {"Normal": 4, "Keyed": 2, "Delay": 2, "Tx": 2, "Order": 3, "Batch": 2, "Retry": 1}
SYSTEM = {
    "%RETRY%refusing": 1,
    "%DLQ%refusing": 1,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
    "SCHEDULE_TOPIC_XXXX": 18,
    "TRANS_CHECK_MAX_TIME_TOPIC": 1,
}
EVERY_KIND = (
    " ".join(["topics", *(f"{topic}={count}" for topic, count in ROUTED.items())]),
    "send Normal 60 16,200,1000,3000 sync",
    "send Normal 16 100 async",
    "send Normal 8 100 oneway",
    "send Normal 3 9000 sync",
    "send Keyed 40 120 sync KEYS=aK TAGS=TagA,TagB,TagC FLAG=7 color=red n=42",
    "send Batch 24 50,90 batch KEYS=aBK TAGS=TagA",
    "send Delay 4 80 sync DELAY=1",
    "send Delay 2 80 sync DELAY=5",
    "transaction Tx 8 64 cruu KEYS=aTK",
    "send Order 24 60 ordered",
    "send Retry 3 60 sync KEYS=aRK",
    "consume Retry refusing * refused",
    "consume Order ordering * orderly",
    "consume Keyed tagging TagA||TagB clustering",
    "consume Normal normal * clustering",
    "consume Normal everyone * broadcasting",
    "wait 30",  # The broker asks 15 times for a half message, then gives it up.
)
"""Every kind of message of 4.x, and of consumption."""
SOME_KINDS = (
    "send Normal 40 16,200,1000,3000 sync",
    "send Keyed 40 120 sync KEYS=bK TAGS=TagA,TagB,TagC FLAG=7 color=blue n=43",
    "send Batch 24 50,90 batch KEYS=bBK TAGS=TagA",
    "send Delay 4 80 sync DELAY=1",
    "send Delay 2 80 sync DELAY=9",
    "transaction Tx 8 64 cruu KEYS=bTK",
    "send Order 24 60 ordered",
    "consume Keyed tagging TagA||TagB clustering",
    "wait 30",
    "send Normal 30 3900,50 sync",
)
SETTLED = ("wait 25",)
"""Slaves ask for the tables of their master every ten seconds."""
DUMP = " ".join(
    ["dump", "Normal", *(f"{topic}={count}" for topic, count in (ROUTED | SYSTEM).items())]
)
PREFERRED = {"n0": "n0", "n1": "n1", "n2": "n0;n1"}
"""For each member of a group, those for whom it gives way as the leader."""


@define
class Scene:
    """One archive: a name server, brokers below ``stores``, and what the client printed."""

    name: str
    work: Path
    home: JavaHome
    ports: list[PortBlock] = field(factory=list)
    settings: dict[str, Mapping[str, str]] = field(factory=dict)
    events: dict[str, list[list[str]]] = field(factory=dict)
    namesrv: str = ""
    servers: list[ServerProcess] = field(factory=list)

    @property
    def stores(self) -> Path:
        return self.work / "stores" / self.name

    @property
    def site(self) -> JavaSite:
        return JavaSite(self.work / "java", self.home)

    def port(self, count: int = 1) -> PortBlock:
        self.ports.append(free_port_block(count))
        return self.ports[-1]

    def start_names(self, controller: int = 0) -> None:
        port = self.port().first
        site = self.site
        server = site.controller("ns", port, controller) if controller else site.namesrv("ns", port)
        self.servers.append(server)
        self.namesrv = server.start().address

    def broker(self, node: str, settings: Mapping[str, str]) -> ServerProcess:
        self.settings[node] = {**SMALL, **settings}
        spec = BrokerSpec(
            port=self.port(BROKER_PORT_COUNT).broker_port,
            namesrv=self.namesrv,
            broker_name="golden",
            store=self.stores / node,
            settings=self.settings[node],
        )
        server = self.site.broker(node, spec)
        server.ready_timeout_s = ROLES_WAIT_S
        self.servers.append(server)
        return server

    def start_group(self) -> list[ServerProcess]:
        """Start a DLedger group of three: n0 leads, and n1 after it, also if n0 returns."""
        ports = list(self.port(len(PREFERRED)))
        members = []
        for number, (node, preferred) in enumerate(PREFERRED.items()):
            settings = group_settings("golden", ports, number) | {"preferredLeaderId": preferred}
            members.append(self.broker(node, {**CHECKS, **settings}))
        members[0].start()
        members[2].start()
        self.write("n0", members[0], "leads", client="Classic")
        members[1].start()
        return members

    def write(
        self, node: str, broker: ServerProcess, *commands: str, client: str = "Writer"
    ) -> None:
        """Run the client's commands; what it printed goes into the manifest."""
        java = [*self.home.java(), *self.site.jvm.words()]
        java += [f"-Duser.home={self.work}", "-Drocketmq.client.logUseSlf4j=true"]
        classes = self.work / "classes"
        path = os.pathsep.join([str(classes), f"{self.home.libraries()}/*"])
        words = [*java, "-cp", path, client, self.namesrv, broker.address, *commands]
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, timeout=CLIENT_SECONDS_MAX, check=False
        )
        lines = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
        self.events.setdefault(node, []).extend(lines)
        if done.returncode:
            raise SystemExit(f"{self.name}: the client ended with {done.returncode}, see above")


def classic(scene: Scene) -> None:
    """one ASYNC_MASTER, stopped with SIGTERM; the messages were pulled just before the stop"""
    scene.start_names()
    broker = scene.broker("store", {"brokerRole": "ASYNC_MASTER", **CHECKS}).start()
    scene.write("store", broker, *EVERY_KIND, "send Normal 30 3900,50 sync", DUMP, client="Classic")
    broker.stop()


def dledger(scene: Scene) -> None:
    """a fresh DLedger group of three: n0 led, was stopped, n1 led, n0 returned; clean stop"""
    scene.start_names()
    n0, n1, n2 = scene.start_group()
    scene.write("n0", n0, *EVERY_KIND, *SETTLED, client="Classic")
    n0.stop()
    scene.write("n1", n1, "leads", *SOME_KINDS, client="Classic")
    n0.start()
    scene.write("n1", n1, *SETTLED, DUMP, client="Classic")
    for broker in (n0, n2, n1):  # The leader is the last: no other member is elected meanwhile.
        broker.stop()


def joined(scene: Scene) -> None:
    """a master n0 and a slave n1, stopped and started as a DLedger group of three (n2 had only the
    master's commit log), more messages, clean stop
    """
    scene.start_names()
    master = scene.broker("n0", {"brokerRole": "ASYNC_MASTER", **CHECKS}).start()
    slave = scene.broker("n1", {"brokerRole": "SLAVE", "brokerId": "1", **CHECKS}).start()
    # A slave without files begins with the last file that its master has when it connects.
    scene.write("n0", master, "wait 40", *EVERY_KIND, *SETTLED, client="Classic")
    master.stop()
    slave.stop()
    shutil.copytree(scene.stores / "n0" / "commitlog", scene.stores / "n2" / "commitlog")
    n0, n1, n2 = scene.start_group()
    scene.write("n0", n0, *SOME_KINDS, *SETTLED, DUMP, client="Classic")
    for broker in (n1, n2, n0):
        broker.stop()


def timers(scene: Scene) -> None:
    """Delivered, waiting, rolled and cancelled timers; a stop, a kill, and a wheel that lags."""
    scene.start_names()
    settings: dict[str, str] = {}
    for node, commands in {
        "clean": ("timer Timer 3 2", "timer Timer 30 1200", "timer Timer 2 7200"),
        "killed": ("timer Timer 3 2", "timer Timer 25 1200"),
        "lagging": ("timer Timer 4 600",),
    }.items():
        if node == "lagging":
            settings = {"timerStopEnqueue": "true"}
        broker = scene.broker(node, settings).start()
        topics = ("topic Timer", "send Timer 3", *commands)
        if node == "clean":
            topics += ("timer Timer 1 1800 cancel",)
        scene.write(node, broker, *topics, "wait 6")
        broker.kill() if node == "killed" else broker.stop()


def pop(scene: Scene) -> None:
    """Acknowledged, waiting and revived POP messages: in the log, and in RocksDB."""
    scene.start_names()
    kv = {"popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true"}
    for node, settings in {"log": {}, "kv": kv}.items():
        broker = scene.broker(node, settings).start()
        scene.write(
            node,
            broker,
            f"topic {LONG_TOPIC}",
            f"send {LONG_TOPIC} 12",
            f"pop {LONG_TOPIC} {LONG_GROUP} 4 6 1",  # Three messages return after six seconds.
            "wait 15",
            f"pop {LONG_TOPIC} another 5 3600 2",
            f"pop {LONG_TOPIC} third 5 20 0",
            "wait 3",
        )
        broker.stop()


def acknowledged(scene: Scene) -> None:
    """POP without anything that waits."""
    scene.start_names()
    broker = scene.broker("log", {}).start()
    scene.write("log", broker, "topic Pop", "send Pop 6", "pop Pop group 6 6 6", "wait 15")
    broker.stop()


def rocksdb(scene: Scene) -> None:
    """Consume queues and tables in RocksDB; in "both" the queues are files too."""
    scene.start_names()
    stored = {"storeType": "defaultRocksDB"}
    for node, settings in {
        "queues": stored,
        "both": {"rocksdbCQDoubleWriteEnable": "true"},
    }.items():
        broker = scene.broker(node, settings).start()
        scene.write(node, broker, "topic Rocks", "send Rocks 40", "wait 2")
        broker.stop()


def queues(scene: Scene) -> None:
    """Light queues, batch consume queues, and a compaction topic."""
    scene.start_names()
    broker = scene.broker("store", {"enableLmq": "true", "enableMultiDispatch": "true"}).start()
    scene.write(
        "store",
        broker,
        "topic Light",
        "send Light 3",
        "send Light 4 INNER_MULTI_DISPATCH=%LMQ%one,%LMQ%two",
        "send Light 2 INNER_MULTI_DISPATCH=%LMQ%one",
        "topic Batch queue.type=BatchCQ",
        "batch Batch 5",
        "send Batch 2",
        "batch Batch 7",
        "topic Compact cleanup.policy=COMPACTION",
        "send Compact 30",
        "topic Plain",
        "send Plain 5",
        "wait 3",
    )
    broker.stop()


def tiered(scene: Scene) -> None:
    """A store whose messages are copied to files of the tiered store."""
    scene.start_names()
    settings = {
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
        "tieredStoreFilePath": str(scene.work / "tier"),
        "tieredStorageLevel": "FORCE",
        "tieredStoreGroupCommitTimeout": "1000",
        "tieredStoreGroupCommitCount": "1",
        "tieredStoreGroupCommitSize": "1",
        "tieredStoreConsumeQueueMaxSize": "65536",
        "tieredStoreCommitLogMaxSize": "65536",
        "tieredStoreIndexFileMaxHashSlotNum": "100",
        "tieredStoreIndexFileMaxIndexNum": "400",
    }
    broker = scene.broker("store", settings).start()
    scene.write("store", broker, "topic Tier", "send Tier 40", "wait 20")
    broker.stop()


def controller(scene: Scene) -> None:
    """Two brokers of a controller: the first leads, is stopped, and returns after an election."""
    controller_port = scene.port().first
    scene.start_names(controller_port)
    settings = {
        "enableControllerMode": "true",
        "controllerAddr": f"127.0.0.1:{controller_port}",
        "inSyncReplicas": "1",
    }
    brokers = [scene.broker(node, settings) for node in ("n0", "n1")]
    brokers[0].start()
    brokers[1].start()
    time.sleep(10)
    scene.write("n0", brokers[0], "topic Elected", "send Elected 20", "wait 3")
    brokers[0].stop()
    time.sleep(15)
    scene.write("n1", brokers[1], "send Elected 20")
    brokers[0].start()
    time.sleep(10)
    brokers[0].stop()
    brokers[1].stop()


SCENES: dict[str, Callable[[Scene], None]] = {
    "A-classic-clean-v533": classic,
    "C-upgraded-v533": joined,
    "D-dledger-v533": dledger,
    "E-timers-v533": timers,
    "F-pop-v533": pop,
    "F-pop-acknowledged-v533": acknowledged,
    "G-rocksdb-v533": rocksdb,
    "H-queues-v533": queues,
    "I-controller-v533": controller,
    "J-tiered-v533": tiered,
}


def pack(scene: Scene, folder: Path, how: str) -> None:
    archive = folder / f"{scene.name}.tar.xz"
    tar = ["tar", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]
    tar += ["-I", "xz -9e -T1", "-C", str(scene.stores.parent), "-cf", str(archive), scene.name]
    subprocess.run(tar, check=True)
    manifest = {"rocketmq": VERSION, "how": how, **told(scene)}
    raw = json.dumps(manifest, indent=1, sort_keys=True).encode()
    (folder / f"{scene.name}.json.xz").write_bytes(lzma.compress(raw))
    print(scene.name, archive.stat().st_size, "bytes")


def told(scene: Scene) -> dict[str, object]:
    """Return what the manifest says of the content: the messages that a consumer has received, if
    the client has printed them, otherwise the lines of the client.
    """
    config = {node: dict(lines) for node, lines in scene.settings.items()}
    events = [line for lines in scene.events.values() for line in lines]
    messages = [json.loads(text) for kind, text, *_ in events if kind == "message"]
    if not messages:
        return {"config": config, "events": scene.events}
    queues: dict[str, list[dict[str, int]]] = {}
    for kind, text, *_ in events:
        if kind == "queue":
            queue = json.loads(text)
            queues.setdefault(queue.pop("topic"), []).append(queue)
    files = {node: listed(scene.stores / node) for node in config}
    return {
        "name": scene.name,
        "config": config if len(config) > 1 else config["store"],
        "files": files,
        "queues": queues,
        "messages": sorted(messages, key=lambda each: each["commitLogOffset"]),
    }


def listed(store: Path) -> dict[str, dict[str, int | str]]:
    """Return the size and the MD5 sum of each file of a store."""
    return {
        str(path.relative_to(store)): {
            "size": path.stat().st_size,
            "md5": hashlib.md5(path.read_bytes()).hexdigest(),
        }
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def main(folder: Path, names: list[str]) -> None:
    home = JavaHome(VERSION)
    for name in names or SCENES:
        with tempfile.TemporaryDirectory(prefix="golden-") as work:
            scene = Scene(name, Path(work), home)
            sources = [str(source) for source in sorted(Path(__file__).parent.glob("*.java"))]
            compile_words = ["javac", "-nowarn", "-cp", f"{home.libraries()}/*"]
            compile_words += ["-d", str(scene.work / "classes"), *sources]
            subprocess.run(compile_words, check=True)
            try:
                SCENES[name](scene)
            finally:
                for server in reversed(scene.servers):
                    server.kill()
            pack(scene, folder, " ".join((SCENES[name].__doc__ or "").split()))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
