"""The checks of a member with an old log before its DLedger log: whether it may join Java members,
and whether it may lead.

=========================  ======================================================================
a member                   rule
=========================  ======================================================================
of Java                    cannot report the content of its old log. A certificate of ``rmqpy
                           upgrade verify`` must do that: EQUAL, with the id of that member among
                           its subjects, and with the same old log as ours. Or set
                           ``rmqpyAcceptUnverifiedPeers=true``
without config/            does not lead before it has fetched topics, groups, consumer and delay
                           offsets from a leader: the others would take over its empty tables,
                           and repeat deliveries and checks. Until then it does not write
                           topics.json either, so that a restart finds it still missing
=========================  ======================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from rmqpy.broker.replication.metadata_sync import MetadataSync
from rmqpy.broker.state.persistence import TOPICS_FILE, TableWriter
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.handshake import PeerHello, compare_old_logs
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import BACKUP_SUFFIX, StorePaths
from rmqpy.store.message_store import MessageStore

if TYPE_CHECKING:  # rmqpy.audit is as large as all that a member needs
    from rmqpy.audit.replicas.certificate import Certificate

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class PeerCertificateCheck:
    """The check of a Java member by certificate. ``introduce`` returns the data of this member."""

    files: FileSystem
    settings: StoreSettings
    introduce: Callable[[], PeerHello]

    @classmethod
    def of(cls, store: MessageStore, introduce: Callable[[], PeerHello]) -> Callable[[str], str]:
        """Return the check for a store. It accepts every member if the store has no old log to
        compare: it never had one, or the old log and the first entries have expired.
        """
        if store.opened.old_log is None or store.opened.old_log.mark.end < 0:
            return lambda _member: ""
        return cls(store.opened.old_log.files, store.settings, introduce).reason_not_trusted

    def reason_not_trusted(self, member: str) -> str:
        """Return why this member may not join a Java ``member``, or an empty text if it may."""
        if self.settings.rmqpy_accept_unverified_peers:
            return ""
        try:
            certificate = self._certificate()
        except RmqError as fault:
            return self._remedy(member, str(fault))
        if not certificate.holds:
            return self._remedy(member, f"the certificate says {certificate.verdict}")
        own = self.introduce()
        subjects = [each for each in certificate.subjects if each.name == member]
        if not subjects:
            named = ", ".join(each.name for each in certificate.subjects)
            return self._remedy(member, f"the certificate is about {named}")
        for subject in subjects:
            if not subject.old_log_digest:
                return self._remedy(member, "the certificate does not describe its old log")
            certified = evolve(
                own,
                member=member,
                divided_offset=subject.divided_offset,
                old_log_end=subject.old_log_end,
                old_log_digest=subject.old_log_digest,
            )
            differences = compare_old_logs(own, certified)
            if differences:
                return "; ".join(differences)
        return ""

    def _certificate(self) -> Certificate:
        path = (
            self.settings.rmqpy_certificate or StorePaths.from_settings(self.settings).certificate
        )
        if not self.files.exists(path):
            raise RmqError(f"there is no certificate at {path}")
        from rmqpy.audit.replicas.certificate import Certificate, check_signature

        raw = self.files.read_bytes(path)
        key_path = self.settings.rmqpy_certificate_key
        if key_path is not None:
            if not self.files.exists(key_path):
                raise RmqError(f"rmqpyCertificateKey={key_path}: no such file")
            if not check_signature(raw, self.files.read_bytes(key_path).strip()):
                raise RmqError(f"{path} is not signed with the key in {PurePath(key_path).name}")
        return Certificate.decode(raw)

    def _remedy(self, member: str, why: str) -> str:
        return (
            f"{member} is a Java member and cannot report the content of its old commit log, and"
            f" {why}: run rmqpy upgrade verify on all members, each named by its id, and give the"
            " result as rmqpyCertificate; or set rmqpyAcceptUnverifiedPeers=true"
        )


@define(slots=True, eq=False, repr=False)
class MetadataReadyCheck:
    """The check that a member does not lead before it has tables.

    A member that started with an old commit log but without topics.json and its backup does not
    write that file before it has fetched the tables.
    """

    _sync: MetadataSync
    _topics: TableWriter
    _is_missing: bool = field(default=False, init=False)

    def start(self, store: MessageStore) -> None:
        """Check whether the tables exist next to the old log of ``store``; log a warning if not."""
        old_log = store.opened.old_log
        if store.opened.divided_offset is None or old_log is None:
            return
        topics = f"{StorePaths.from_settings(store.settings).config}/{TOPICS_FILE}"
        if not any(map(old_log.files.exists, (topics, topics + BACKUP_SUFFIX))):
            self._is_missing = True
            self._topics.suspend()
            logger.warning(
                "%s is missing next to an old commit log: this member does not lead before it has"
                " fetched topics, groups and offsets from a leader; if no member has them, copy"
                " config/ of the last master",
                topics,
            )

    def is_missing_metadata(self) -> bool:
        if self._is_missing and self._sync.is_synchronized:
            self._is_missing = False
            self._topics.resume()
        return self._is_missing
