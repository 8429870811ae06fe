"""BootNote: shows a start that no power failure has happened since the store was opened.

A process that was killed leaves everything that it wrote in the page cache, in the order in which
it wrote, so damage at the end of a log need not be what a power failure left. ``rmqpy/boot`` is one
line: the boot id of the machine (on Linux ``/proc/sys/kernel/random/boot_id``, which a container
shares with its host), and the identity of ``abort``. A start that finds no valid note replaces
both. A copy of a store and a restored backup contain another ``abort``.

Invariant: a note that is missing, cannot be read, or does not match shows nothing, and neither does
one on a machine without a boot id. A file system that was restored from a snapshot, or unmounted
forcibly, without a restart of the machine keeps its note wrongly: then the note must be removed.
"""

from __future__ import annotations

from rmqpy.model.files import FileSystem
from rmqpy.model.values import define

BOOT_NOTE_NAME = "boot"


@define(slots=True, frozen=True, eq=False, repr=False)
class BootNote:
    """The note of one store. ``boot_id`` is that of this machine, or empty if it has none."""

    files: FileSystem
    path: str
    abort: str
    """The path of ``abort``."""
    boot_id: str

    def holds(self) -> bool:
        """Return whether these files were opened in the present boot of the machine."""
        line = self._line()
        try:
            return bool(line) and self.files.read_bytes(self.path) == line
        except OSError:
            return False

    def write(self) -> None:
        """Note the present boot. To be called once ``abort`` has been created and all units lead to
        whole records. Blocks; raises OSError.
        """
        line = self._line()
        if line:
            self.files.replace_bytes(self.path, line)
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the note, because files are about to be changed in another way than by writing."""
        self.files.unlink(self.path)

    def _line(self) -> bytes:
        try:
            identity = self.files.identity(self.abort)
        except FileNotFoundError:
            return b""
        numbers = " ".join(map(str, identity))
        return f"{self.boot_id} {numbers}\n".encode() if self.boot_id else b""
