"""Real Java RocketMQ for tests and benchmarks: jars from Maven, servers as processes, a probe
client and mqadmin.

::

    home = JavaHome("4.9.7")
    if reason := home.missing():
        ...                                 # Java is not available; report the reason
    site = JavaSite(directory, home)
    with site.namesrv("ns", port) as namesrv, site.broker("a", BrokerSpec(...)) as broker:
        with site.probe(namesrv.address) as probe:
            probe.run("send", topic="T", count=4, retryMs=5000)
"""

from rmqpy.model.deprecation import deprecated_names
from rmqpy.testing.java.clients import ClientError, Event, MqAdmin, Probe, probe_body
from rmqpy.testing.java.install import JavaHome, JavaUnavailableError
from rmqpy.testing.java.site import JavaSite, JvmSettings

__all__ = [
    "ClientError",
    "Event",
    "JavaHome",
    "JavaSite",
    "JavaUnavailableError",
    "JvmSettings",
    "MqAdmin",
    "Probe",
    "probe_body",
]

__getattr__ = deprecated_names(
    __name__,
    {"ClientFault": "ClientError", "JavaUnavailable": "JavaUnavailableError"},
)
