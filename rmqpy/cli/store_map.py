"""``rmqpy store map``: a picture of one store or of several replicas, as a page."""

from __future__ import annotations

import argparse
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rmqpy.cli.parsing import EXIT_DONE, add_log_options, port_number
from rmqpy.model.errors import RmqError

if TYPE_CHECKING:
    from rmqpy.cli.parsing import Commands
    from rmqpy.config.loading import StoreSettings

LOOPBACK: Final = "127.0.0.1"
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""The page has its style inside and no script."""
HEAD_SECONDS: Final = 20


def add_map(verbs: Commands) -> None:
    """Add the verb ``map``."""
    drawn = verbs.add_parser(
        "map", help="draw the files of replicas, the divide, damage, and where the replicas differ"
    )
    drawn.add_argument("directories", nargs="+", metavar="DIR", help="a storePathRootDir each")
    drawn.add_argument(
        "-c",
        dest="configs",
        action="append",
        default=[],
        metavar="FILE",
        help="the broker.conf of a directory, in the order of the directories",
    )
    target = drawn.add_mutually_exclusive_group(required=True)
    target.add_argument("--html", metavar="FILE", help="write the page to this file")
    target.add_argument(
        "--serve", action="store_true", help="show the page at a port of 127.0.0.1 until Ctrl-C"
    )
    drawn.add_argument(
        "--port", type=port_number, default=0, help="with --serve; default 0: any free port"
    )
    add_log_options(drawn)
    drawn.set_defaults(command=_map, interrupted="")


def _map(options: argparse.Namespace) -> int:
    page = _page(options)
    if options.html is not None:
        try:
            Path(options.html).write_text(page, encoding="utf-8")
        except OSError as error:
            raise RmqError(f"{options.html}: cannot be written: {error.strerror}") from None
        return EXIT_DONE
    with map_server(page, options.port) as server:
        print(f"map at http://{LOOPBACK}:{server.server_port}", file=sys.stderr, flush=True)
        server.serve_forever()
    return EXIT_DONE


def _page(options: argparse.Namespace) -> str:
    from rmqpy.audit.picture.layout import lay_out
    from rmqpy.audit.picture.reading import read_replica_map
    from rmqpy.audit.picture.svg import map_page
    from rmqpy.audit.scan.store_root import check_store_root
    from rmqpy.cli.progress import ProgressLine
    from rmqpy.store.files.disk import OsFileSystem

    files = OsFileSystem()
    roots = [str(Path(each).resolve()) for each in options.directories]
    settings = _settings(options)
    for root, each in zip(roots, settings, strict=True):
        check_store_root(files, root, each)
    replicas = []
    for given, root, each in zip(options.directories, roots, settings, strict=True):
        with ProgressLine(f"read of {given}") as progress:
            replicas.append(read_replica_map(files, root, each, progress, given))
    return map_page(lay_out(replicas), _title(options.directories))


def _title(directories: list[str]) -> str:
    count = len(directories)
    return f"Store map of {directories[0] if count == 1 else f'{count} replicas'}"


def _settings(options: argparse.Namespace) -> list[StoreSettings | None]:
    from rmqpy.config.loading import load_store_settings

    count = len(options.directories)
    if len(options.configs) > count:
        raise RmqError(
            f"found {len(options.configs)} -c, expected at most {count}: one for each DIR"
        )
    found: list[StoreSettings | None] = [load_store_settings(each) for each in options.configs]
    return found + [None] * (count - len(found))


class _PageHandler(BaseHTTPRequestHandler):
    """Answers every request of this machine with the one page."""

    server: _PageServer
    timeout = HEAD_SECONDS

    def do_GET(self) -> None:
        if not _is_own_name(self.headers.get("Host", "")):
            self.send_error(403, "expected 127.0.0.1 or localhost as the host")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Print no line per request."""


class _PageServer(ThreadingHTTPServer):
    """A server on the loopback interface with one page."""

    daemon_threads = True

    def __init__(self, page: str, port: int) -> None:
        super().__init__((LOOPBACK, port), _PageHandler)
        self.page = page.encode()


def map_server(page: str, port: int) -> _PageServer:
    """Return a server that listens and has this page."""
    return _PageServer(page, port)


def _is_own_name(host: str) -> bool:
    """Return whether the page was requested under a name that only this machine has, and not under
    one that another page has made to lead here.
    """
    try:
        return urlsplit(f"//{host}").hostname in (LOOPBACK, "localhost")
    except ValueError:
        return False
