"""Options that the commands of `braid wire` share: addresses, dialects, files."""

import sys
from pathlib import Path
from typing import Any, Final

import click

from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.network_faults import Splitter
from braidlog.wire.dialect import watched

DIALECTS: Final = click.Choice(sorted(watched()))
FILE_BYTES_MAX: Final = 1024 * 1024 * 1024


class AddressType(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    """`host:port`, `:port`, `dialect://host:port`, `dialect://host`."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if not isinstance(value, str):
            return value
        scheme, slashes, rest = value.rpartition("://")
        if slashes and scheme not in watched():
            self.fail(f"unknown protocol {scheme!r}; supported: {', '.join(sorted(watched()))}", param, ctx)
        host, colon, port = rest.rstrip("/").rpartition(":")
        if not colon and slashes:
            host, port = port, str(watched()[scheme].port)
        if not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not host:port", param, ctx)
        return scheme or None, Address(host.strip("[]") or "127.0.0.1", int(port))


ADDRESS: Final = AddressType()
SERVER = click.option(
    "--server", required=True, type=ADDRESS, metavar="HOST:PORT", help="Server address, or dialect://host:port."
)
DIALECT = click.option("-d", "--dialect", type=DIALECTS, help="Protocol.")


def dialect_of(dialect: str | None, scheme: str | None) -> str:
    """Return the dialect of the option or the address."""
    found = dialect or scheme
    if found is None:
        raise click.UsageError("unknown protocol: pass --dialect, or --server dialect://host:port")
    return found


def check_split(split: str) -> None:
    try:
        Splitter(split)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def read_bytes(file: str) -> bytes:
    """Read a file, or standard input."""
    try:
        data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{file}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise BrokerError(Reason.INVALID_SETTING, f"{file} is larger than {FILE_BYTES_MAX} bytes")
    return data


def read_text(file: str) -> str:
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{file} is not text: invalid UTF-8 at byte {error.start}") from error
