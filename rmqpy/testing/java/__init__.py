"""Real Java RocketMQ for tests and benchmarks: jars from Maven, servers as processes, a probe
client and mqadmin.

::

    home = JavaHome("4.9.7")
    if reason := home.missing():
        ...                                 # no Java here, say why
    site = JavaSite(directory, home)
    with site.namesrv("ns", port) as namesrv, site.broker("a", BrokerSpec(...)) as broker:
        with site.probe(namesrv.address) as probe:
            probe.run("send", topic="T", count=4, retryMs=5000)
"""

from rmqpy.testing.java.clients import ClientFault, Event, MqAdmin, Probe, probe_body
from rmqpy.testing.java.install import JavaHome, JavaUnavailable
from rmqpy.testing.java.site import JavaSite, JvmSettings

__all__ = [
    "ClientFault",
    "Event",
    "JavaHome",
    "JavaSite",
    "JavaUnavailable",
    "JvmSettings",
    "MqAdmin",
    "Probe",
    "probe_body",
]
