"""Read lines of files and of standard input in chunks, as they arrive.

`stop` ends a read that waits for a terminal or a pipe, from any thread; complete lines read before are still returned.
A line has a maximum length.
"""

import os
import select
import sys
from typing import BinaryIO, NamedTuple, Self

from braidlog.model.errors import BrokerError, Reason
from braidlog.model.limits import BATCH_BYTES_MAX

CHUNK_BYTES = 64 * 1024
STDIN = "-"


class Line(NamedTuple):
    """A line without its delimiter, with file and line number."""

    text: bytes
    file: str
    number: int


class LineError(Exception):
    """An invalid line, with its location; the cause has the reason alone."""

    def __init__(self, line: Line, cause: Exception) -> None:
        name = "standard input" if line.file == STDIN else line.file
        super().__init__(f"{name}, line {line.number}: {cause}")


class Lines:
    """Lines of files in sequence. Without a delimiter each file is one line."""

    def __init__(self, files: tuple[str, ...], delimiter: bytes | None) -> None:
        if delimiter == b"":
            raise ValueError("the delimiter must not be empty; --whole makes each file one record")
        self._files = list(files)
        self._delimiter = delimiter
        self._open: BinaryIO | None = None
        self._name = ""
        self._number = 0
        self._rest = bytearray()
        self._stopped = False
        self._wake, self._alarm = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        os.close(self._wake)
        os.close(self._alarm)

    def stop(self) -> None:
        """Stop reading."""
        if not self._stopped:
            self._stopped = True
            os.write(self._alarm, b"!")

    def next_chunk(self) -> list[Line] | None:
        """Wait for data; return the complete lines, possibly none, or None at the end of all files."""
        if self._stopped:
            return None
        if self._open is None:
            if not self._files:
                return None
            self._open_next()
        data = self._read()
        if data is None:
            return None
        if not data:
            return self._end_of_file()
        return self._split(data)

    def _open_next(self) -> None:
        self._name, self._number, self._rest = self._files.pop(0), 0, bytearray()
        if self._name == STDIN:
            self._open = sys.stdin.buffer
            return
        try:
            self._open = open(self._name, "rb", buffering=0)  # noqa: SIM115 - closed at its end
        except OSError as error:
            raise BrokerError(Reason.INVALID_SETTING, f"{self._name}: {error.strerror}") from error

    def _read(self) -> bytes | None:
        """Return available data as soon as there is any; empty at the end of the file, None after `stop`."""
        assert self._open is not None
        try:
            descriptor = self._open.fileno()
        except (OSError, ValueError):
            return self._open.read(CHUNK_BYTES)  # not an operating system file: reading does not block
        ready, _, _ = select.select([descriptor, self._wake], [], [])
        return None if self._wake in ready else os.read(descriptor, CHUNK_BYTES)

    def _split(self, data: bytes) -> list[Line]:
        found: list[bytearray] = []
        before = len(self._rest)
        self._rest += data
        # Search each byte only once, or a long line would cost quadratic time.
        if self._delimiter is not None and self._delimiter in self._rest[max(before - len(self._delimiter) + 1, 0) :]:
            *found, self._rest = self._rest.split(self._delimiter)
        if len(self._rest) > BATCH_BYTES_MAX:
            raise BrokerError(Reason.RECORD_TOO_LARGE, f"{self._name}: a record of more than {BATCH_BYTES_MAX} bytes")
        return [self._line(text) for text in found]

    def _line(self, text: bytearray) -> Line:
        self._number += 1
        return Line(bytes(text), self._name, self._number)

    def _end_of_file(self) -> list[Line]:
        """Return the text after the last delimiter as a line, unless it is empty; a whole file may be empty."""
        last = [self._line(self._rest)] if self._rest or self._delimiter is None else []
        self._close()
        return last

    def _close(self) -> None:
        if self._open is not None and self._name != STDIN:
            self._open.close()
        self._open, self._rest = None, bytearray()
