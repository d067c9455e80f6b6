"""`braid wire decode`: decodes bytes message by message."""

from typing import Any

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import LINES, line_of, paint
from braidlog.cli.wire.options import DIALECT, read_bytes
from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.wire.annotated_hex import NotationError
from braidlog.tools.wire.capture.decoder import FORMS, Decoded, Unknown
from braidlog.tools.wire.capture.decoder import decode as decode_bytes
from braidlog.tools.wire.capture.message_format import fields_text, hex_pairs, hex_rows, message_object
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.tools.wire.capture.pcapng import Address, CaptureError, CaptureWriter
from braidlog.tools.wire.capture.transcript import ARROWS
from braidlog.tools.wire.private_file import create_private
from braidlog.wire.cursus import DIALECT as CURSUS
from braidlog.wire.dialect import watched
from braidlog.wire.observer import Side

_AROUND_BYTES = 8


@click.command(
    epilog=f"""\b
Example:
  braid wire decode request.bin --dialect mayfly
  echo 'CA FE 01 04 00000007 00000000' | braid wire decode - -d mayfly
  braid wire decode talk.log                       log of tap or serve, with bytes
  braid wire decode capture.pcapng --port {CURSUS.port}     protocol by port, or by --dialect
\b
Exit codes: 0 all valid, 1 invalid messages, 2 wrong usage, 3 no such file.
"""
)
@click.argument("file", default="-")
@DIALECT
@click.option(
    "--from",
    "side",
    type=click.Choice(["client", "server"]),
    default="client",
    show_default=True,
    help="Sender of raw bytes.",
)
@click.option("--form", type=click.Choice(FORMS), default="auto", show_default=True, help="Format of FILE.")
@click.option("--port", type=click.IntRange(1, 65535), help="Server port in a capture.")
@click.option("--hex", "with_bytes", is_flag=True, help="Include the bytes of each message.")
@click.option("--pcapng", "capture", metavar="FILE", help="Also write the messages as a capture for Wireshark.")
@LINES
def decode(  # noqa: PLR0913 - one parameter an option
    *,
    file: str,
    dialect: str | None,
    side: str,
    form: str,
    port: int | None,
    with_bytes: bool,
    capture: str | None,
    output: str,
) -> None:
    """Decode FILE (`-` is standard input): raw bytes, hex text, a wire log, or a capture (pcapng, pcap).

    Prints each message field by field, without secrets. For invalid bytes it marks the first one and prints what was
    expected.
    """
    is_sound = True
    captured: list[Decoded] = []
    try:
        for found in decode_bytes(read_bytes(file), dialect, Side(side), form, port):
            is_sound &= found.seen.fault is None
            line = (
                line_of(_json(found, with_bytes=with_bytes))
                if output == "json"
                else _text(found, with_bytes=with_bytes)
            )
            click.echo(line)
            if capture:
                captured.append(found)
    except (NotationError, Unknown) as error:
        raise click.UsageError(f"{file}: {error}") from error
    except CaptureError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{file}: {error}") from error
    if capture:
        _write_capture(capture, captured)
    if not is_sound:
        end(NO)


def _text(found: Decoded, *, with_bytes: bool) -> str:
    seen = found.seen
    size = f"[{seen.header_bytes}+{seen.size - seen.header_bytes}={seen.size} bytes]"
    lines = [
        f"{found.connection} {ARROWS[seen.side]} {size} at byte {seen.position}: {paint(seen.name, 'cyan')}",
        *fields_text(seen),
    ]
    if with_bytes:
        lines += hex_rows(seen)
    if seen.fault is not None:
        lines += _fault_lines(seen)
    return "\n".join(lines)


def _fault_lines(seen: Seen) -> list[str]:
    assert seen.fault is not None
    position = seen.fault.position
    if position is None:
        return [f"    {paint('!!', 'red')} {seen.fault.message}"]
    start = max(position - _AROUND_BYTES, 0)
    row = hex_pairs(seen.data[start : position + _AROUND_BYTES], seen.hidden, start)
    return [
        f"    {paint('!!', 'red')} byte {seen.position + position} (byte {position} of the message): {seen.fault.message}",
        f"       {row}",
        f"       {'   ' * (position - start)}^^",
    ]


def _json(found: Decoded, *, with_bytes: bool) -> bytes:
    entry: dict[str, Any] = {"dialect": found.dialect, "connection": found.connection, **message_object(found.seen)}
    if with_bytes:
        entry["hex"] = hex_pairs(found.seen.data, found.seen.hidden)
    return msgspec.json.encode(entry)


def _write_capture(path: str, captured: list[Decoded]) -> None:
    try:
        with create_private(path) as file:
            writer = CaptureWriter(file)
            opened: set[str] = set()
            for number, found in enumerate(captured):
                if found.connection not in opened:
                    opened.add(found.connection)
                    client = Address(*found.client) if found.client else Address("127.0.0.1", 49_152 + len(opened))
                    server = (
                        Address(*found.server) if found.server else Address("127.0.0.1", watched()[found.dialect].port)
                    )
                    writer.open(found.connection, client, server, found.time_ns)
                writer.write(found.connection, found.seen.side, found.seen.data, found.time_ns + number)
            for connection in opened:
                writer.close(connection, 0)
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{path}: {error.strerror}") from error
