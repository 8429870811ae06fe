"""Create Spark sessions with rmqpy's defaults, and check their requirements.

The defaults and their purposes:

==========================================  =====================================================
local[*,4]                                  a task that lost its worker is retried
PYSPARK_PYTHON (local masters)              workers use this Python, not the first on PATH
spark.driver.host, bindAddress, local IP    a local session needs no network and opens no port
spark.python.unix.domain.socket.enabled     local masters: no task waits for a TCP ACK
spark.ui.enabled=false                      no web page, no port
spark.sql.session.timeZone=UTC              timestamps mean the same everywhere
JVM options (local masters, light plans)    code that only distributes work is not compiled twice
==========================================  =====================================================

The ``settings`` of a plan override all of these.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from attrs import define, field

from rmqpy.model.errors import ConfigError, RmqError
from rmqpy.pipeline.spark.java_output import JavaOutput, held_output
from rmqpy.pipeline.spark.jvm import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "LOCAL_MASTER",
    "SessionPlan",
    "check_needs",
    "check_package",
    "is_installed",
    "spark_session",
    "worker_texts",
]

T = TypeVar("T")

LOCAL_MASTER: Final = "local[*,4]"
LOOPBACK: Final = "127.0.0.1"
PACKAGES: Final = ("pyspark", "pyarrow", "pandas")
"""The packages of the extra; pyspark requires pandas before it maps Arrow batches."""
VERSIONS_MIN: Final[Mapping[str, tuple[int, ...]]] = {"pyspark": (4, 2), "pyarrow": (21, 0)}
WORKER_REQUESTS: Final = 16
INTERRUPT_S: Final = 5.0
ANSWER_S: Final = 5.0
"""The time in which a cluster must accept a connection. Spark itself tries for minutes."""
CONNECT_PORT: Final = 15002
"""The port of a Spark Connect server without one in its address."""
PY4J_LOG: Final = logging.getLogger("py4j")
_JAVA_CLASS: Final = re.compile(r"^: (?:[a-z]\w*\.)+\w+: ")
INSTALL: Final = "install it with: pip install 'rmqpy[spark]'"

SETTINGS: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    "spark.python.unix.domain.socket.enabled": "true",
}
LIGHT_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@define(slots=True, frozen=True, kw_only=True)
class SessionPlan:
    """The settings of a session.

    ``master`` is in Spark's notation (``local[2]``, ``spark://host:7077``); ``remote`` is the
    address of a Spark Connect server to use instead. ``light`` means that Python workers do all the
    work. ``python_files`` and ``archives`` are sent to the workers.
    """

    master: str = LOCAL_MASTER
    name: str = "rmqpy"
    remote: str | None = None
    light: bool = False
    settings: Mapping[str, str] = field(factory=dict)
    python_files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")

    def all_settings(self) -> dict[str, str]:
        """Return the defaults, changed by ``settings``."""
        found = dict(SETTINGS)
        if self.is_local:
            found |= {**LOCAL_SETTINGS, **(LIGHT_SETTINGS if self.light else {})}
        if self.remote is None and self.python_files:
            found["spark.submit.pyFiles"] = ",".join(self.python_files)
        if self.remote is None and self.archives:
            found["spark.archives"] = ",".join(self.archives)
        return found | dict(self.settings)


def is_installed() -> bool:
    """Return whether the packages of the extra ``spark`` are installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


def check_needs(environment: Mapping[str, str]) -> Iterator[tuple[str, str | ConfigError]]:
    """Yield (requirement of a session, text about what was found or the error)."""
    for package in PACKAGES:
        yield package, _found(check_package, package)
    yield "Java", _found(_java, environment)
    yield "SPARK_HOME", _found(_spark_home, environment)


def _found(check: Callable[[T], str], argument: T) -> str | ConfigError:
    try:
        return check(argument)
    except ConfigError as fault:
        return fault


def check_package(name: str, install: str = INSTALL) -> str:
    """Return the version of a package. Raise ConfigError if it is missing or too old."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{name} is not installed; {install}") from None
    least = VERSIONS_MIN.get(name, ())
    if tuple(map(int, version.split(".")[: len(least)])) < least:
        needed = ".".join(map(str, least))
        raise ConfigError(f"{name} {version} is older than {needed}; {install}")
    return version


def _java(environment: Mapping[str, str]) -> str:
    java = find_java(environment)
    warning = "" if java.home is None else ", which Spark does not support"
    return f"{java.version}, {java.program} (from {java.source}{warning})"


def _spark_home(environment: Mapping[str, str]) -> str:
    """Check an inherited SPARK_HOME: Spark uses its jars, so they must have pyspark's version."""
    home = environment.get("SPARK_HOME")
    if not home:
        return "not set: the jars of pyspark are used"
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return f"{home}, not checked: pyspark is not installed"
    if not list(Path(home, "jars").glob(f"spark-core_*-{version}.jar")):
        raise ConfigError(
            f"SPARK_HOME={home} has no Spark {version}, the version of pyspark; unset it"
        )
    return home


def worker_texts(session: SparkSession) -> list[str]:
    """Return a description of each worker that answers one of a few requests.

    Raise RmqError if a worker has another version of rmqpy.
    """
    from rmqpy.pipeline.spark.distributed_map import map_on_spark

    units = range(WORKER_REQUESTS)
    return sorted(set(map_on_spark(session, _worker_text, units)))


def _worker_text(_unit: int) -> str:
    return f"Python {platform.python_version()} at {platform.node()}: {sys.executable}"


@contextmanager
def spark_session(plan: SessionPlan) -> Iterator[SparkSession]:
    """Yield the active session of this process, or a new one that is stopped after the block.

    Raise ConfigError with the remedy if a requirement is missing.
    """
    for name, found in check_needs(os.environ):
        if isinstance(found, ConfigError) and (plan.remote is None or name in PACKAGES):
            raise found
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    _check_cluster(plan)
    with interrupt_on_sigint():
        with held_output() as output:
            session = _start(plan, output)
            output.release()
        _silence_traces()
        try:
            yield session
        finally:
            output.hold()
            session.stop()


def _check_cluster(plan: SessionPlan) -> None:
    """Raise RmqError if nobody listens at the addresses of a standalone cluster (one or more,
    comma separated) or a Spark Connect server.
    """
    option, address = ("master", plan.master) if plan.remote is None else ("remote", plan.remote)
    scheme, _, rest = address.partition("://")
    if scheme not in ("spark", "sc") or not rest:
        return
    places = rest.split(",") if scheme == "spark" else [rest.partition(";")[0]]
    reasons = []
    for place in places:
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise RmqError(f"found --{option} {address}: {error}; correct the address") from None
        if port is None and scheme == "spark":
            return  # Spark names the mistake.
        try:
            socket.create_connection((host, port or CONNECT_PORT), ANSWER_S / len(places)).close()
        except OSError as error:
            reasons.append(f"{place.rstrip('/')}: {error}")
        else:
            return
    raise RmqError(
        f"Spark does not start with {option} {address}: found no answer ({'; '.join(reasons)}),"
        f" expected a running {'master' if scheme == 'spark' else 'Spark Connect server'}; start"
        f" it, or correct --{option}"
    )


def _silence_traces() -> None:
    """Drop the traces that pyspark logs for a wrong statement; its error is raised, too."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def interrupt_on_sigint() -> Iterator[None]:
    """Restore the handler of Ctrl-C after the block, and drop py4j's report of Ctrl-C during it.

    pyspark installs a handler that calls the JVM from within whatever call this thread is making.
    """
    root, before = logging.getLogger(), signal.getsignal(signal.SIGINT)
    level = PY4J_LOG.level
    root.addFilter(_is_reported)
    try:
        yield
    finally:
        root.removeFilter(_is_reported)
        PY4J_LOG.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _interrupt(session: SparkSession, _number: int, _frame: Any) -> None:
    """Cancel all jobs in another thread, then raise KeyboardInterrupt.

    py4j's messages about the connection on which this thread was waiting are suppressed.
    """
    PY4J_LOG.setLevel(logging.CRITICAL)
    context = getattr(session, "sparkContext", None)
    if context is not None:
        canceller = threading.Thread(target=context.cancelAllJobs, daemon=True)
        canceller.start()
        canceller.join(INTERRUPT_S)
    raise KeyboardInterrupt


def _is_reported(record: logging.LogRecord) -> bool:
    """Return False for py4j's report of Ctrl-C, which has a traceback."""
    return not str(record.msg).startswith("KeyboardInterrupt while")


def java_reason(text: str) -> str:
    """Return the message of the exception in the text of an error of Java, without the trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(": ")] or lines or ["no reason given"]
    return _JAVA_CLASS.sub("", causes[0])


def _check_sent_files(plan: SessionPlan) -> None:
    """Raise ConfigError if a file that the workers shall get does not exist."""
    for text in (*plan.python_files, *plan.archives):
        path = text.partition("#")[0]
        if "://" not in path and not Path(path).is_file():
            raise ConfigError(
                f"{path}: found no file, expected one to send to the workers; check --py-files and"
                " --archives"
            )


def _start(plan: SessionPlan, output: JavaOutput) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check_sent_files(plan)
    if plan.remote is None:
        home = find_java(os.environ).home
        if home is not None:
            os.environ["JAVA_HOME"] = home
    if plan.is_local or (plan.remote or "").startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder
    builder = builder.remote(plan.remote) if plan.remote else builder.master(plan.master)
    for key, value in plan.all_settings().items():
        builder = builder.config(key, value)
    try:
        session: SparkSession = builder.appName(plan.name).getOrCreate()
        if plan.remote is not None and plan.python_files:
            session.addArtifacts(*plan.python_files, pyfile=True)
        if plan.remote is not None and plan.archives:
            session.addArtifacts(*plan.archives, archive=True)
    except (PySparkException, Py4JError, RuntimeError) as error:
        reason = output.reason() or java_reason(str(error))
        raise RmqError(
            f"Spark does not start with {'remote' if plan.remote else 'master'}"
            f" {plan.remote or plan.master}: {reason.rstrip('.')}; run rmqpy pipeline doctor"
            " to check the installation"
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, partial(_interrupt, session))
    return session
