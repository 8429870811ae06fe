"""A proxy that cuts TCP connections, for tests of what is lost with them."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Forwards TCP connections to a port here. Once, after ``left`` more bytes of answers,
    it ends all that are open.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.left: int | None = None
        self.cuts = 0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self._end_all()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            with self._lock:
                self._open |= {near, far}
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(
                    target=self._forward, args=(source, sink, answers), daemon=True
                ).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self._is_last(len(data)):
                    self._end_all()
                    return
                sink.sendall(data)
        for each in (source, sink):
            _end(each)

    def _is_last(self, count: int) -> bool:
        with self._lock:
            if self.left is None:
                return False
            self.left -= count
            if self.left > 0:
                return False
            self.left, self.cuts = None, self.cuts + 1
            return True

    def _end_all(self) -> None:
        with self._lock:
            ended, self._open = self._open, set()
        for each in ended:
            _end(each)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
