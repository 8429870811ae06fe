"""The subscription groups: what consumer groups may do, ``config/subscriptionGroup.json``.

An unknown group is created with the defaults on its first request if
``autoCreateSubscriptionGroup`` is set.

Invariants: every name obeys the rule of :mod:`rmqpy.model.names`; every change gives a new data
version and calls the listener; clients cannot create more than ``CREATED_GROUPS_LIMIT``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from attrs import define, evolve, field

from rmqpy.broker.base.context import BrokerContext
from rmqpy.model import names
from rmqpy.model.clock import Clock
from rmqpy.model.encoded_rows import EncodedRows
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.recent_changes import RecentChanges
from rmqpy.model.steps import Steps, finish
from rmqpy.remoting.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmqpy.remoting.fastjson import dumps_member, dumps_with_rows

CREATED_GROUPS_LIMIT: Final = 10_000

logger = logging.getLogger(__name__)


@define(slots=True, eq=False, repr=False)
class SubscriptionGroupTable:
    """The subscription groups by name."""

    identity: BrokerContext
    clock: Clock
    data_version: DataVersion = field(init=False)
    changes: RecentChanges = field(factory=RecentChanges, init=False)
    _groups: dict[str, SubscriptionGroupConfig] = field(factory=dict, init=False)
    _rows: EncodedRows = field(init=False)
    _on_change: Callable[[], None] = field(default=lambda: None, init=False)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at each change."""
        self._on_change = listener

    def __attrs_post_init__(self) -> None:
        self.data_version = DataVersion(self.clock.now_ms())
        for name in names.INITIAL_GROUPS:
            self._groups[name] = SubscriptionGroupConfig(group_name=name)
        self._rows = EncodedRows(self._row)
        self._rows.reset(self._groups)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(group)

    @property
    def groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """All groups by name; not to be changed."""
        return self._groups

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, or None if it is unknown and may not be created. Raises
        RequestRejectedError if the name of a new group is invalid.
        """
        found = self._groups.get(group)
        if found is not None:
            return found
        if not (
            self.identity.broker_settings.auto_create_subscription_group
            or names.is_system_group(group)
        ):
            return None
        names.check_group(group)
        if len(self._groups) - len(names.INITIAL_GROUPS) >= CREATED_GROUPS_LIMIT:
            logger.warning("group %s not created: limit of %d reached", group, CREATED_GROUPS_LIMIT)
            return None
        created = self._groups[group] = SubscriptionGroupConfig(group_name=group)
        self._changed(group)
        return created

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group for an administrator. Raises RequestRejectedError if its name
        is invalid.
        """
        names.check_group(config.group_name)
        self._groups[config.group_name] = config
        self._changed(config.group_name)

    def delete(self, group: str) -> bool:
        if self._groups.pop(group, None) is None:
            return False
        self._changed(group)
        return True

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return the table as it is sent to slaves."""
        return SubscriptionGroupWrapper(
            data_version=self.data_version, subscription_group_table=dict(self._groups)
        )

    def file_steps(self) -> Steps[list[bytes]]:
        """Return the table as it is saved, in parts: the ``pretty`` form of :meth:`wrapper`."""
        yield from self._rows.encode_steps()
        return self._parts(pretty=True)

    def encoded(self) -> list[bytes]:
        """Return the text of :meth:`wrapper`, in parts."""
        return self._parts(pretty=False)

    def _parts(self, *, pretty: bool) -> list[bytes]:
        value = {"dataVersion": self.data_version.to_json(), "subscriptionGroupTable": {}}
        return dumps_with_rows(value, self._rows.parts(compact=not pretty), pretty=pretty)

    def _row(self, name: str) -> bytes:
        return dumps_member(name, self._groups[name].to_json(), 2)

    def restore(self, saved: SubscriptionGroupWrapper) -> None:
        """Take over a saved table. A group with an invalid name is skipped with an error in the
        log.
        """
        self._take_over(saved)
        self._note_all()
        finish(self._rows.encode_steps())  # Otherwise the first change waits for all rows.

    def _take_over(self, saved: SubscriptionGroupWrapper) -> None:
        for name, config in saved.subscription_group_table.items():
            try:
                names.check_group(name)
            except RequestRejectedError as refusal:
                logger.error("group %r of the saved table skipped: %s", name, refusal)
                continue
            self._groups[name] = evolve(config, group_name=name)
        self.data_version = saved.data_version

    def replace(
        self, received: SubscriptionGroupWrapper, kept: Collection[str], version: DataVersion
    ) -> None:
        """Replace the table by the groups of a master and the ``kept`` groups of our own."""
        own = {name: self._groups[name] for name in kept}
        self._groups.clear()
        self._take_over(received)
        self._groups.update(own)
        self.data_version = version
        self._note_all()
        self._on_change()

    def _note_all(self) -> None:
        self.changes.note_all()
        self._rows.reset(self._groups)

    def _changed(self, group: str) -> None:
        self.changes.note(group)
        if group in self._groups:
            self._rows.note(group)
        else:
            self._rows.discard(group)
        self.data_version = self.data_version.next(self.clock.now_ms())
        self._on_change()
