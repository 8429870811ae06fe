"""What ``securityMode=secure`` sets and demands: one key for a server that is open to nobody by
default.

==========================  =====================================================================
set, unless said otherwise  aclEnable, namesrvAclEnable, tls.enable, tls.client.authServer,
                            haTlsEnable: true; tls.server.mode: enforcing;
                            registrationAddresses, administrationAddresses: empty
refused                     another value of these that opens a door again
demanded                    innerClientAuthenticationCredentials (brokers); by what is set above
                            also tls.server.certPath, tls.server.keyPath, tls.client.trustCertPath
                            and an access file that only its owner and group can read, without the
                            secret of Java's example accounts
==========================  =====================================================================
"""

from __future__ import annotations

from typing import Final

from rmqpy.model.errors import ConfigError

SECURE_VALUES: Final = {
    "aclEnable": "true",
    "namesrvAclEnable": "true",
    "tls.server.mode": "enforcing",
    "tls.enable": "true",
    "tls.client.authServer": "true",
    "haTlsEnable": "true",
}
"""The values of a secure server; a file that contradicts them is refused."""

SECURE_DEFAULTS: Final = {"registrationAddresses": "", "administrationAddresses": ""}
"""The defaults of a secure server; a file may set others, but never all addresses."""


def secure_additions(texts: dict[str, str], known: set[str]) -> dict[str, str]:
    """Return the values to add to those of the file (``texts``); raises ConfigError for one that
    contradicts the mode. ``known``: the keys that this server has.
    """
    for name, wanted in SECURE_VALUES.items():
        given = texts.get(name)
        if name in known and given is not None and given.strip().lower() != wanted:
            raise ConfigError(
                f"{name}={given} contradicts securityMode=secure, which means {name}={wanted}; "
                "leave it out, or choose securityMode=compatible"
            )
    for name in SECURE_DEFAULTS:
        if "*" in [part.strip() for part in texts.get(name, "").split(";")]:
            raise ConfigError(
                f"{name}={texts[name]} contradicts securityMode=secure: name the addresses"
            )
    return {
        name: value
        for name, value in {**SECURE_DEFAULTS, **SECURE_VALUES}.items()
        if name in known and name not in texts
    }
