"""The access of Spark tasks to brokers: addresses, credentials, and TLS, from options."""

from __future__ import annotations

from typing import Final

from attrs import define, field

from rmqpy.acl.signature import Credentials
from rmqpy.client.core.instance import ClientSettings
from rmqpy.model.errors import ConfigError
from rmqpy.net.tls import side_of_file
from rmqpy.pipeline.datasource.options import Options

__all__ = ["ACCESS_OPTIONS", "ClusterAccess"]

ACCESS_OPTIONS: Final = frozenset(
    ["nameServer", "accessKey", "secretKey", "securityToken", "useTLS", "tlsConfigFile"]
)


@define(slots=True, frozen=True, kw_only=True)
class ClusterAccess:
    """The access to a cluster.

    ``tls_file`` has the format of Java's tls.config.file and must exist on every worker; with
    ``tls`` alone no certificate is verified.
    """

    name_servers: str
    credentials: Credentials | None = field(default=None, repr=False)
    tls: bool = False
    tls_file: str | None = None

    @classmethod
    def of(cls, given: Options) -> ClusterAccess:
        key, secret = given.text("accessKey", None), given.text("secretKey", None)
        if (key is None) != (secret is None):
            raise ConfigError("give accessKey and secretKey together")
        tls_file = given.text("tlsConfigFile", None)
        return cls(
            name_servers=given.required("nameServer"),
            credentials=None
            if key is None or secret is None
            else Credentials(key, secret, given.text("securityToken", None)),
            tls=given.flag("useTLS", tls_file is not None),
            tls_file=tls_file,
        )

    def settings(self) -> ClientSettings:
        """Return the settings for a client of this process."""
        return ClientSettings(
            name_servers=self.name_servers,
            credentials=self.credentials,
            tls=side_of_file(self.tls_file) if self.tls else None,
        )
