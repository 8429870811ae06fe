"""What the console knows of a cluster at one moment: plain values, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from rmqpy.model.ids import MASTER_ID

__all__ = ["BrokerFacts", "BrokerKey", "Moment", "number_of"]

BrokerKey = tuple[str, int]
"""Broker name and id."""


@define(slots=True, frozen=True, kw_only=True)
class BrokerFacts:
    """One broker as the name server and the broker itself describe it.

    ``fault`` says why it did not answer ("" if it did), and ``left_ms`` when it was first missing
    from the list of the name servers (-1 while it is registered). ``info`` is its runtime
    information, ``settings`` its configuration (empty if it may not be read), and ``status`` what a
    member of a DLedger group of rmqpy reports (None from all others).
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    fault: str = ""
    left_ms: int = -1
    info: Mapping[str, str] = field(factory=dict)
    settings: Mapping[str, str] = field(factory=dict)
    status: Mapping[str, Any] | None = None

    @property
    def key(self) -> BrokerKey:
        return self.name, self.broker_id

    @property
    def is_registered(self) -> bool:
        return self.left_ms < 0

    @property
    def is_dledger(self) -> bool:
        return self.status is not None or self.settings.get("enableDLegerCommitLog") == "true"

    @property
    def controllers(self) -> str:
        """The addresses of the controllers that elect this broker's master; "" without any."""
        if self.settings.get("enableControllerMode") != "true":
            return ""
        return self.settings.get("controllerAddr", "")

    @property
    def is_rmqpy(self) -> bool | None:
        """Whether this is a broker of rmqpy; None if it is not known."""
        if self.status is not None:
            return True
        return "securityMode" in self.settings if self.settings else None

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    @property
    def log_end(self) -> int | None:
        return number_of(self.info, "commitLogMaxOffset")

    @property
    def log_extent(self) -> tuple[int, int] | None:
        """The first offset of the log and its end; None if the broker does not report both.

        A member of a DLedger group, of rmqpy or of Java, reports the committed position as the end.
        """
        begin, end = number_of(self.info, "commitLogMinOffset"), self.log_end
        return (begin, end) if begin is not None and end is not None and 0 <= begin <= end else None


@define(slots=True, frozen=True, kw_only=True)
class Moment:
    """Everything that one poll has found. ``fault`` says why no name server answered."""

    time_ms: int
    brokers: Sequence[BrokerFacts] = ()
    fault: str = ""

    def of_name(self, name: str) -> list[BrokerFacts]:
        """Return the brokers with a name, by id; those that are no longer registered last."""
        found = (each for each in self.brokers if each.name == name)
        return sorted(found, key=lambda each: (not each.is_registered, each.key))

    def master_of(self, name: str) -> BrokerFacts | None:
        """Return the broker that is registered as the master of a name."""
        return next((b for b in self.of_name(name) if b.is_master and b.is_registered), None)

    def masters(self) -> list[BrokerFacts]:
        """Return the broker that answers for each name: its master if there is one, else the one
        with the lowest id.
        """
        found: dict[str, BrokerFacts] = {}
        for broker in sorted(self.brokers, key=lambda each: (not each.is_registered, each.key)):
            known = found.get(broker.name)
            if known is None or (known.fault and not broker.fault):
                found[broker.name] = broker
        return list(found.values())


def number_of(values: Mapping[str, str], key: str) -> int | None:
    """Return a value as a number, or None if it is none."""
    text = values.get(key, "")
    return int(text) if text.isascii() and text.removeprefix("-").isdigit() else None
