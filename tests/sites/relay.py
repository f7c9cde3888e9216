"""A TCP relay that can be cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    def __init__(self, to: int) -> None:
        self.to, self.live = to, list[socket.socket]()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])

    def __enter__(self) -> Relay:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.listening.close()
        self.cut()

    def cut(self) -> None:
        live, self.live = self.live, []
        for each in live:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listening.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to), 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self.live += [near, far]
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                sink.sendall(part)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
