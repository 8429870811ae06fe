"""Whether a member with an old log in front of its DLedger log is fit to join Java members, and to
lead.

=========================  ======================================================================
a member                   then
=========================  ======================================================================
of Java                    cannot say what its old log holds. A certificate of ``rmqpy upgrade
                           verify`` must: equal, with that member by its id among its subjects,
                           and the same old log as ours; or ``rmqpyAcceptUnverifiedPeers=true``
without config/            does not lead before it has fetched topics, groups, consumer and delay
                           offsets from a leader: the others would take over its empty tables,
                           and deliver and check again what was done. Until then it writes no
                           topics.json either: after a restart it is still one without tables
=========================  ======================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePath

from attrs import define, evolve, field

from rmqpy.audit.replicas.certificate import Certificate, check_signature
from rmqpy.broker.replication.metadata_sync import MetadataSync
from rmqpy.broker.state.persistence import TOPICS_FILE, TableWriter
from rmqpy.config.loading import StoreSettings
from rmqpy.dledger.handshake import PeerHello, compare_old_logs
from rmqpy.model.errors import RmqError
from rmqpy.model.files import FileSystem
from rmqpy.store.files.paths import StorePaths
from rmqpy.store.message_store import MessageStore

logger = logging.getLogger(__name__)


@define(slots=True, frozen=True)
class PeerCertificateCheck:
    """Says why a Java member may not be joined. ``introduce`` tells of this member."""

    files: FileSystem
    settings: StoreSettings
    introduce: Callable[[], PeerHello]

    @classmethod
    def of(cls, store: MessageStore, introduce: Callable[[], PeerHello]) -> Callable[[str], str]:
        """For a store; one that never had an old log, or whose entries in front have expired like
        it, has nothing to compare.
        """
        if store.opened.old_log is None or store.opened.old_log.mark.end < 0:
            return lambda _member: ""
        return cls(store.opened.old_log.files, store.settings, introduce).reason_not_trusted

    def reason_not_trusted(self, member: str) -> str:
        """ "" when it may be joined."""
        if self.settings.rmqpy_accept_unverified_peers:
            return ""
        try:
            certificate = self._certificate()
        except RmqError as fault:
            return self._remedy(member, str(fault))
        if not certificate.is_equal:
            return self._remedy(member, "the certificate says NOT EQUAL")
        own = self.introduce()
        subjects = [each for each in certificate.subjects if each.name == member]
        if not subjects:
            named = ", ".join(each.name for each in certificate.subjects)
            return self._remedy(member, f"the certificate is about {named}")
        for subject in subjects:
            if not subject.old_log_digest:
                return self._remedy(member, "the certificate does not tell of its old log")
            told = evolve(
                own,
                member=member,
                divided_offset=subject.divided_offset,
                old_log_end=subject.old_log_end,
                old_log_digest=subject.old_log_digest,
            )
            differences = compare_old_logs(own, told)
            if differences:
                return "; ".join(differences)
        return ""

    def _certificate(self) -> Certificate:
        path = (
            self.settings.rmqpy_certificate or StorePaths.from_settings(self.settings).certificate
        )
        if not self.files.exists(path):
            raise RmqError(f"there is no certificate at {path}")
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
            f"{member} is a Java member and cannot say what its old commit log holds, and {why}:"
            " run rmqpy upgrade verify on all members, each named by its id, and give the result"
            " as rmqpyCertificate; or set rmqpyAcceptUnverifiedPeers=true"
        )


@define(slots=True, eq=False, repr=False)
class MetadataReadyCheck:
    """Says whether this member would lead without tables.

    Until it has fetched them, a member that started without topics.json next to an old commit log
    does not write that file either.
    """

    _sync: MetadataSync
    _topics: TableWriter
    _is_missing: bool = field(default=False, init=False)

    def start(self, store: MessageStore) -> None:
        """Look for the tables next to the log of ``store``."""
        old_log = store.opened.old_log
        if store.opened.divided_offset is None or old_log is None:
            return
        topics = f"{StorePaths.from_settings(store.settings).config}/{TOPICS_FILE}"
        if not old_log.files.exists(topics):
            self._is_missing = True
            self._topics.suspend()
            logger.warning(
                "%s is missing beside an old commit log: this member does not lead before it has"
                " fetched topics, groups and offsets from a leader; where no member has them, copy"
                " config/ of the last master",
                topics,
            )

    def is_missing_metadata(self) -> bool:
        if self._is_missing and self._sync.is_synchronized:
            self._is_missing = False
            self._topics.resume()
        return self._is_missing
