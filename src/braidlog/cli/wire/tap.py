"""`braid wire tap`: a proxy that logs messages."""

import asyncio
import contextlib
import signal

import click

from braidlog.cli import say
from braidlog.cli.wire.options import ADDRESS, DIALECT, check_split, dialect_of
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.capture.recorder import Recorder, RecorderSettings
from braidlog.tools.wire.proxy import Tap, TapSettings
from braidlog.wire.cursus import DIALECT as CURSUS


@click.command(
    epilog=f"""\b
Example:
  braid wire tap --listen :7000 --to :{CURSUS.port} --dialect cursus
  braid wire tap --listen :7000 --to kafka://broker --format json --hex > talk.json
  braid wire tap --listen :7000 --to mlog://127.0.0.1 --split random --delay 20      a slow network
  braid wire tap --listen :7000 --to flux://127.0.0.1 --pcapng talk.pcapng            for Wireshark
"""
)
@click.option(
    "--listen",
    required=True,
    type=ADDRESS,
    metavar="[HOST]:PORT",
    help="Address for clients; port 0: any free port.",
)
@click.option("--to", required=True, type=ADDRESS, metavar="HOST:PORT", help="Server address, or dialect://host:port.")
@DIALECT
@click.option("--log", "path", default="-", show_default=True, metavar="FILE", help="Log file; `-` is standard output.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log.",
)
@click.option(
    "--hex", "with_bytes", is_flag=True, help="Include the bytes of each message, as `braid wire send` needs them."
)
@click.option("--pcapng", default="", metavar="FILE", help="Also write a capture for Wireshark.")
@click.option("--split", default="", metavar="N|random", help="Forward bytes in pieces of N bytes, or of random size.")
@click.option(
    "--delay", "delay_ms", type=click.IntRange(min=0, max=60_000), default=0, metavar="MS", help="Delay of each piece."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of `--split random`.")
def tap(  # noqa: PLR0913 - one parameter an option
    *,
    listen: tuple[str | None, Address],
    to: tuple[str | None, Address],
    dialect: str | None,
    path: str,
    form: str,
    with_bytes: bool,
    pcapng: str,
    split: str,
    delay_ms: int,
    seed: int,
) -> None:
    """Proxy connections between clients and a server, and log every message without secrets, until SIGTERM or SIGINT.

    Backpressure is kept in both directions. TLS is forwarded, but cannot be decoded.
    """
    check_split(split)
    settings = TapSettings(dialect_of(dialect, to[0] or listen[0]), listen[1], to[1], split, delay_ms, seed)
    try:
        recorder = Recorder(RecorderSettings(path, form, with_bytes, pcapng), SystemClock().now_ns)
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"{error.filename}: {error.strerror}") from error
    try:
        asyncio.run(_tap(Tap(settings, recorder), settings))
    except OSError as error:
        raise BrokerError(Reason.INVALID_SETTING, f"cannot listen: {error.strerror or error}") from error
    finally:
        recorder.close()


async def _tap(tap: Tap, settings: TapSettings) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, stopping.set)
    await tap.start()
    say(f"tap {settings.dialect} {settings.listen.host}:{tap.port} -> {settings.to.host}:{settings.to.port}")
    await stopping.wait()
    await tap.stop()
