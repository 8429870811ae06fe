"""Java name servers, brokers, and clients below one directory.

Each server has a folder: ``conf/`` (its configuration and that of its log), ``logs/``, ``store/``.
``user.home``, ``ROCKETMQ_HOME``, and ``java.io.tmpdir`` are in it, so nothing is written elsewhere.
RocketMQ 4.x reads ``conf/logback_{broker,namesrv,tools}.xml`` and ends if they are missing; 5.x
reads the file named by ``rmq.logback.configurationFile`` and has its logback under another package
name. The files for both are written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field

from rmqpy.config.properties_file import decode_properties_bytes, parse_properties
from rmqpy.testing.java.clients import ADMIN_SECONDS_MAX, LineClient, MqAdmin, Probe
from rmqpy.testing.java.install import JavaHome
from rmqpy.testing.processes import LOOPBACK, BrokerSpec, ServerProcess, write_properties

READY = re.compile(rb"boot success")
CONTROLLER_READY = re.compile(rb"ControllerManager boot success")
LOG_KINDS = ("broker", "namesrv", "controller", "tools")
LOGBACK = """<configuration>
  <appender name="file" class="{appender}">
    <file>{log}</file>
    <encoder><pattern>%d{{HH:mm:ss.SSS}} %-5p %c{{0}} [%t] %m%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""
BUSY_MACHINE = {
    "registerNameServerPeriod": "10000",
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
    "warmMapedFileEnable": "false",
}
"""Settings with which a Java broker does not refuse requests only because the machine is slow."""


@define(frozen=True, kw_only=True)
class JvmSettings:
    """The memory and options of a JVM. The default starts fast; benchmarks need other values."""

    heap_min_mb: int = 64
    heap_max_mb: int = 384
    direct_mb: int = 384
    options: tuple[str, ...] = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

    def words(self) -> list[str]:
        heap = [f"-Xms{self.heap_min_mb}m", f"-Xmx{self.heap_max_mb}m"]
        return [*heap, f"-XX:MaxDirectMemorySize={self.direct_mb}m", *self.options]


@define(frozen=True)
class JavaSite:
    """A factory of Java servers and clients, each with its own directory below ``root``."""

    root: Path
    home: JavaHome
    jvm: JvmSettings = field(factory=JvmSettings)
    log_level: str = "INFO"
    environment: Mapping[str, str] = field(factory=dict)

    def namesrv(self, name: str, port: int) -> ServerProcess:
        directory = self.root / name
        lines = {"listenPort": str(port), "kvConfigPath": str(directory / "kvConfig.json")}
        conf = write_properties(directory / "conf" / "namesrv.conf", lines)
        main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)]
        return self._server(name, "namesrv", main, port)

    def controller(self, name: str, port: int, controller_port: int) -> ServerProcess:
        """Return a name server of 5.x with the only member of a controller group in it."""
        directory = self.root / name
        lines = {
            "listenPort": str(port),
            "kvConfigPath": str(directory / "kvConfig.json"),
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{LOOPBACK}:{controller_port}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(directory / "controller"),
            "enableElectUncleanMaster": "false",
        }
        conf = write_properties(directory / "conf" / "namesrv.conf", lines)
        main = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)]
        server = self._server(name, "namesrv", main, port)
        server.ready = CONTROLLER_READY
        return server

    def mqcontroller(self, name: str, conf: Path, controller_port: int) -> ServerProcess:
        """Return a controller of 5.x on its own. Its data are below ``root``, unless the
        configuration says where.
        """
        main = ["org.apache.rocketmq.controller.ControllerStartup", "-c", str(conf)]
        return self._server(name, "controller", main, controller_port)

    def broker(self, name: str, spec: BrokerSpec) -> ServerProcess:
        store = spec.store or self.root / name / "store"
        server = self._broker(name, spec.lines(store), spec.port)
        server.store = store
        return server

    def broker_of(self, name: str, conf: Path, port: int) -> ServerProcess:
        """Return a broker with the lines of an existing broker.conf, which says ``port``, too."""
        lines = parse_properties(decode_properties_bytes(conf.read_bytes()))
        return self._broker(name, {line.key: line.value for line in lines}, port)

    def _broker(self, name: str, lines: Mapping[str, str], port: int) -> ServerProcess:
        conf = self.root / name / "conf" / "broker.conf"
        write_properties(conf, {**BUSY_MACHINE, **lines})
        main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]
        return self._server(name, "broker", main, port)

    def probe(self, namesrv: str, name: str = "probe") -> Probe:
        """Return a probe with the folder ``name``; concurrent probes need different folders."""
        return Probe(self._client(name, ["Probe"]), namesrv)

    def admin(self, namesrv: str) -> MqAdmin:
        return MqAdmin(self._client("admin", ["Admin", str(ADMIN_SECONDS_MAX)]), namesrv)

    def _server(self, name: str, kind: str, main: list[str], port: int) -> ServerProcess:
        directory = self.root / name
        argv = [*self._java(directory, kind), "-cp", f"{self.home.libraries()}/*", *main]
        environment = self._environment(directory)
        return ServerProcess(name, argv, directory, port, READY, environment=environment)

    def _client(self, name: str, main: list[str]) -> LineClient:
        directory = self.root / name
        path = os.pathsep.join([str(self.home.classes()), f"{self.home.libraries()}/*"])
        argv = [*self._java(directory, "tools"), "-cp", path, *main]
        return LineClient(argv, directory, self._environment(directory))

    def _java(self, directory: Path, kind: str) -> list[str]:
        temporary = directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        self._configure_logs(directory)
        properties = {
            "user.home": directory,
            "java.io.tmpdir": temporary,
            "rocketmq.home.dir": directory,
            "rmq.logback.configurationFile": directory / "conf" / f"rmq.{kind}.logback.xml",
            "rocketmq.client.logRoot": directory / "logs",
            "rocketmq.client.logUseSlf4j": "false",
            "rocketmq.client.logLevel": "WARN",
        }
        defined = [f"-D{key}={value}" for key, value in properties.items()]
        return [*self.home.java(), *self.jvm.words(), *defined]

    def _configure_logs(self, directory: Path) -> None:
        conf, logs = directory / "conf", directory / "logs"
        conf.mkdir(parents=True, exist_ok=True)
        logs.mkdir(exist_ok=True)
        plain = "ch.qos.logback.core.FileAppender"
        for kind in LOG_KINDS:
            values = {"log": logs / f"{kind}.log", "level": self.log_level}
            for file, appender in (
                (f"logback_{kind}.xml", plain),
                (f"rmq.{kind}.logback.xml", f"org.apache.rocketmq.logging.{plain}"),
            ):
                text = LOGBACK.format(appender=appender, **values)
                (conf / file).write_text(text, encoding="utf-8")

    def _environment(self, directory: Path) -> dict[str, str]:
        """Return an environment without the settings of a user's own RocketMQ."""
        kept = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        return {**kept, "ROCKETMQ_HOME": str(directory), **self.environment}
