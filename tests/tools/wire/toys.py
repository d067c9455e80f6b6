"""Servers made for one test: each connection is answered by a function of what came."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[bytes], bytes | None]
"""What to say to bytes that came; None closes the connection."""


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """The port of a server that lives as long as the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    talks: list[socket.socket] = []

    def talk(wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            while data := wire.recv(65536):
                said = answer(data)
                if said is None:
                    return
                wire.sendall(said)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                wire, _ = listener.accept()
                talks.append(wire)
                threading.Thread(target=talk, args=(wire,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for wire in talks:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            wire.close()
        thread.join(10)
