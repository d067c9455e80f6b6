"""A client of lines, by hand: what the tests of flux over a socket share. It knows nothing of braidlog's own reader."""

import re
from collections.abc import Iterable

from tests.adapters.connected import Connected


class Talk(Connected):
    """One connection. Every wait ends at the timeout, with the test."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address)
        self._data = b""
        self._number = 0

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> str:
        """The next line; an empty text when the server has closed."""
        while b"\n" not in self._data:
            try:
                received = self.socket.recv(65536)
            except ConnectionResetError:
                received = b""
            if not received:
                assert not self._data, f"the connection ended within a line: {self._data[:80]!r}"
                return ""
            self._data += received
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    def begin(self, command: str, args: str = "") -> str:
        """Ask without waiting; return the id of the answer."""
        self._number += 1
        self.send(f"V1|{self._number}|{command}|{args}\n".encode())
        return str(self._number)

    def end(self, number: str) -> str:
        """The answer to what was asked under this id, which must be the next one to come."""
        version, answered, rest = self.line().split("|", 2)
        assert (version, answered) == ("V1", number)
        return rest

    def ask(self, command: str, args: str = "") -> str:
        """What stands behind the id in the answer: `OK|payload` or `ERR|CODE|message`."""
        return self.end(self.begin(command, args))

    def all(self, asked: Iterable[tuple[str, str]]) -> list[str]:
        return [self.ask(command, args) for command, args in asked]

    def ended(self) -> bool:
        """Whether the server closed, having said nothing more."""
        return self.line() == ""


def fields(answer: str) -> dict[str, str]:
    """The words of `OK|a=1 b=[0 1]`."""
    status, _, payload = answer.partition("|")
    assert status == "OK", answer
    return dict(re.findall(r"([a-z_]+)=(\[[^]]*\]|\S*)(?: |$)", payload))
