"""The settings that ``securityMode=secure`` implies and requires: a single key for a server that
grants no access by default.

==========================  =====================================================================
set unless configured       aclEnable, namesrvAclEnable, tls.enable, tls.client.authServer,
                            haTlsEnable: true; tls.server.mode: enforcing;
                            registrationAddresses, administrationAddresses: empty
refused                     another value of these that would grant access again
required                    innerClientAuthenticationCredentials (brokers); because of the settings
                            above also tls.server.certPath, tls.server.keyPath,
                            tls.client.trustCertPath and an access file that only its owner and
                            group can read, without the secret of Java's example accounts
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
"""The defaults of a secure server. A file may set other addresses, but not all addresses."""


def secure_additions(texts: dict[str, str], known: set[str]) -> dict[str, str]:
    """Return the values to add to those of the file (``texts``). ``known`` contains the keys that
    this server has. Raises ConfigError for a value that contradicts the mode.
    """
    for name, required in SECURE_VALUES.items():
        given = texts.get(name)
        if name in known and given is not None and given.strip().lower() != required:
            raise ConfigError(
                f"{name}={given} contradicts securityMode=secure, which implies {name}={required}; "
                "remove it, or set securityMode=compatible"
            )
    for name in SECURE_DEFAULTS:
        if "*" in [part.strip() for part in texts.get(name, "").split(";")]:
            raise ConfigError(
                f"{name}={texts[name]} contradicts securityMode=secure: list the allowed addresses"
            )
    return {
        name: value
        for name, value in {**SECURE_DEFAULTS, **SECURE_VALUES}.items()
        if name in known and name not in texts
    }
