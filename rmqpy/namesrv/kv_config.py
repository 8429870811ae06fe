"""The key-value settings of admins: namespace -> key -> value, stored in kvConfig.json.

The only namespace that the name server itself uses is ``ORDER_TOPIC_CONFIG`` (topic ->
``broker:queues;...``): brokers receive it in the response to their registration, clients in routes.

Invariant: the file always contains the table of the last change that was answered with success.
"""

from __future__ import annotations

from attrs import define, field

from rmqpy.model.codes import ResponseCode
from rmqpy.model.errors import RequestRejectedError
from rmqpy.model.files import FileSystem
from rmqpy.namesrv.names import VALUE_LENGTH_MAX, check_name, check_text
from rmqpy.remoting.bodies import KVConfigSerializeWrapper
from rmqpy.store.files.atomic import DAMAGED_SUFFIX, read_with_backup
from rmqpy.store.files.deferred_write import DeferredFileWriter, Saved

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


@define(slots=True, eq=False, repr=False)
class KvConfig:
    """The table. A change is visible immediately, and ``done`` is called when it is on disk."""

    _file: DeferredFileWriter
    _entries_max: int
    _table: dict[str, dict[str, str]] = field(factory=dict)

    def load(self, files: FileSystem) -> None:
        """Load the file or its backup. Raises StoreError if neither is readable."""
        path = self._file.path
        kept = path + DAMAGED_SUFFIX
        saved = read_with_backup(files, path, KVConfigSerializeWrapper.decode, kept=kept)
        if saved is not None:
            self._table = saved.config_table

    def put(self, namespace: str, key: str, value: str, done: Saved) -> None:
        self._file.check_not_full()
        check_name("namespace", namespace)
        check_name("key", key)
        check_text("value", value, VALUE_LENGTH_MAX)
        if key not in self._table.get(namespace, {}) and self._entries >= self._entries_max:
            raise RequestRejectedError(
                ResponseCode.SYSTEM_BUSY,
                f"the limit of {self._entries_max} settings is reached; delete some first",
            )
        self._table.setdefault(namespace, {})[key] = value
        self._save(done)

    def delete(self, namespace: str, key: str, done: Saved) -> None:
        """Delete a key. Succeeds even if it does not exist. An empty namespace is kept, as
        in Java.
        """
        self._file.check_not_full()
        if self._table.get(namespace, {}).pop(key, None) is None:
            done(None)
            return
        self._save(done)

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    @property
    def _entries(self) -> int:
        return sum(len(each) for each in self._table.values())

    def _save(self, done: Saved) -> None:
        self._file.save(lambda: KVConfigSerializeWrapper(self._table).encode(pretty=True), done)
