"""The one place that turns an error of the operating system into a sentence for the operator."""

from __future__ import annotations

import errno

_SENTENCES = {
    errno.ENOENT: ("no such file or directory", "an existing one", "check the path"),
    errno.EACCES: (
        "a file or directory that this user may not access",
        "permission to read and write it",
        "run the command as the user of the broker, or change the permissions",
    ),
    errno.EISDIR: ("a directory", "a file", "give the path of a file"),
    errno.ENOTDIR: ("a file where a directory must be", "a directory", "check the path"),
    errno.EEXIST: ("a file that already exists", "a new path", "give another path"),
    errno.ENAMETOOLONG: ("a name that is too long", "a shorter one", "check the path"),
    errno.ELOOP: ("a circle of symbolic links", "a file or directory", "correct the links"),
    errno.ENOSPC: (
        "no space or no inode left on the file system",
        "free space and free inodes",
        "free disk space (df), or remove files if there are no inodes (df -i), then repeat the"
        " command",
    ),
    errno.EROFS: (
        "a read-only file system",
        "one that can be written",
        "mount it for writing, or give another path",
    ),
    errno.EIO: (
        "an input/output error of the disk",
        "a readable and writable disk",
        "check the disk and the kernel log before anything else is written",
    ),
    errno.EMFILE: ("the limit of open files", "a free descriptor", "raise it with ulimit -n"),
    errno.EADDRINUSE: (
        "an address that another process uses",
        "a free port",
        "stop that process, or give another port",
    ),
}
_SAME = {errno.EPERM: errno.EACCES, errno.EDQUOT: errno.ENOSPC, errno.ENFILE: errno.EMFILE}


def sentence_of(error: OSError) -> str:
    """Return the path, what was found, what was expected, and the remedy."""
    number = error.errno or 0
    known = _SENTENCES.get(_SAME.get(number, number))
    text = error.strerror or str(error) or type(error).__name__
    if known is not None:
        found, expected, remedy = known
        text = f"found {found}, expected {expected}; {remedy}"
    return f"{error.filename}: {text}" if error.filename is not None else text
