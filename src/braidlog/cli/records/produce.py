"""`braid produce`: lines, files and JSON become records.

Knows: options, when to stop, what to report. Refuses to know: how a line becomes a record (`text.py`), where bytes come
from (`lines.py`), how records travel.
Invariants: a count of acknowledged records is of those that the node has answered for, no other. An interrupt stops the reading,
not the sending: what was read is still delivered; a second interrupt gives up. At the first failure nothing more is read.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import click

from braidlog.cli import INTERRUPTED, USAGE, end, say
from braidlog.cli.records.lines import LineError, Lines
from braidlog.cli.records.text import ENCODINGS, RecordDefaults, json_reader, text_reader, unescape
from braidlog.cli.terminal.arguments import pairs
from braidlog.cli.terminal.connection import Node, with_node
from braidlog.cli.terminal.interrupts import Interrupts
from braidlog.cli.terminal.names import complete_topics
from braidlog.cli.terminal.output import hint, is_watched, plural
from braidlog.cli.terminal.times import MOMENT
from braidlog.client.engine.delivery import Delivery
from braidlog.client.engine.producer import Producer
from braidlog.client.errors import ClientError, Refusal, RefusedError
from braidlog.client.session import Client
from braidlog.model.errors import BrokerError
from braidlog.model.record_json import ParsedRecord
from braidlog.tasks import Tasks

RETRIES_LOOK_SECONDS = 1.0
T = TypeVar("T")
Reader = Callable[[bytes], ParsedRecord]


class Ledger:
    """What was sent, what became of it."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failure: Exception | None = None
        self._waiting: deque[Delivery] = deque()

    def add(self, delivery: Delivery) -> None:
        self.sent += 1
        self._waiting.append(delivery)

    def settle(self) -> None:
        """Count those at the front that have their outcome."""
        while self._waiting and self._waiting[0].done():
            try:
                self._waiting.popleft().result()
            except ClientError as error:
                self.failure = self.failure or error
            else:
                self.acknowledged += 1

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """The first failure is kept, and raised by nobody: who reads the ledger says it."""
        try:
            yield
        except (ClientError, BrokerError, LineError) as error:
            self.failure = self.failure or error

    def __str__(self) -> str:
        if self.acknowledged == self.sent:
            return f"{plural(self.sent, 'record')} acknowledged"
        return f"{self.acknowledged:,} of {plural(self.sent, 'record')} acknowledged"


def deliver(work: Coroutine[Any, Any, T], ledger: Ledger) -> T:
    """Do it in a loop of its own; who interrupts it twice is told how far it came."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        end(INTERRUPTED, f"gave up; {ledger}")


class Retries:
    """Says why nothing moves, once for each reason."""

    def __init__(self, producer: Producer, seconds_max: float) -> None:
        self._producer = producer
        self._seconds_max = seconds_max
        self._said = ""

    async def look(self) -> None:
        why = str(self._producer.retrying or "")
        if why and why != self._said:
            self._said = why
            say(f"trying for {self._seconds_max:g} s: {why}")


@asynccontextmanager
async def delivering(
    client: Client,
    ledger: Ledger,
    seconds_max: float,
    **options: Any,  # noqa: ANN401 - the producer's
) -> AsyncIterator[Producer]:
    """A producer for as long as there is something to send; then every outcome is waited for. Why one failed is in the ledger."""
    producer = client.producer(delivery_timeout=seconds_max, send_timeout=seconds_max, **options)
    tasks = Tasks()
    tasks.every(RETRIES_LOOK_SECONDS, Retries(producer, seconds_max).look, "what is tried again")
    try:
        with ledger.noting_failures():
            yield producer
        with ledger.noting_failures():
            await producer.flush()  # what it raises has an entry in the ledger
        ledger.settle()
    except asyncio.CancelledError:
        client.abandon()  # or closing it would wait for the same answers once more
        raise
    finally:
        await tasks.stop()


@click.command(
    epilog="""\b
Example:
  echo hello | braid produce greetings --create
  braid produce users -K : < users.txt                  each line is KEY:VALUE
  braid produce clicks -f '%k\\t%T\\t%s' clicks.tsv       key, milliseconds, value
  braid consume clicks --json | braid produce copy --json
"""
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("-k", "--key", help="Of every record whose line has none.")
@click.option("-K", "--key-separator", metavar="TEXT", help="A line is a key, this, and a value.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="For every record; may be repeated."
)
@click.option("-p", "--partition", type=click.IntRange(0), help="Where to; else by the key.")
@click.option("--timestamp", "timestamp_ms", type=MOMENT, help="Of every record; else the time of sending.")
@click.option("-Z", "--null", "empty_is_none", is_flag=True, help="An empty value is none at all: a tombstone.")
@click.option("-f", "--format", "shape", metavar="FORMAT", help="Of a line: %k %s %h %p %T, and what is between them.")
@click.option(
    "-D",
    "--delimiter",
    default="\\n",
    show_default=True,
    help="What ends a record; \\n, \\t, \\0, \\xNN are understood.",
)
@click.option("--whole", is_flag=True, help="Each file, or all of standard input, is one record.")
@click.option(
    "--input",
    "form",
    type=click.Choice([*ENCODINGS, "json"]),
    default="text",
    show_default=True,
    help="Keys and values as they are, in hex, in base64; or a record a line, in JSON.",
)
@click.option("--json", "form", flag_value="json", help="The same as --input json: what `braid consume --json` prints.")
@click.option(
    "--acks",
    type=click.Choice(["leader", "all"]),
    help="Who must have it.  [default: all where a retry is recognised (kafka, cursus), else leader]",
)
@click.option(
    "--at-least-once", is_flag=True, help="Where a protocol cannot recognise a retry: rather twice than unknown."
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Of what is sent, where the protocol has it (kafka, cursus).",
)
@click.option("--create", is_flag=True, help="Make the topic first, if it is not there.")
@with_node
def produce(  # noqa: PLR0913 - one parameter an option
    node: Node,
    *,
    topic: str,
    files: tuple[str, ...],
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    shape: str | None,
    delimiter: str,
    whole: bool,
    form: str,
    acks: str | None,
    at_least_once: bool,
    create: bool,
    compression: str | None,
    **defaults: Any,  # noqa: ANN401 - the fields of RecordDefaults
) -> None:
    """Write each line of the FILEs, or of standard input, to TOPIC as a record; `-` is standard input too.

    Ends when all is acknowledged. At an interrupt it reads no more, delivers what it has read, and says how many records were
    acknowledged.
    """
    if compression is not None:
        node = node.with_option("compression", compression)
    try:
        every = RecordDefaults(
            key=None if key is None else key.encode(),
            headers=tuple((name, value.encode()) for name, value in pairs(headers, "-H").items()),
            **defaults,
        )
        reader = _reader(form, shape, key_separator, every)
        lines = Lines(files or ("-",), None if whole else unescape(delimiter))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = {"acks": acks, "retries": "at-least-once" if at_least_once else "safe"}
    ledger = Ledger()
    interrupted = deliver(_produce(node, topic, lines, reader, ledger, options, create=create), ledger)
    _report(topic, ledger, interrupted=interrupted)


def _reader(form: str, shape: str | None, separator: str | None, defaults: RecordDefaults) -> Reader:
    if form == "json":
        if shape is not None or separator is not None:
            raise ValueError("JSON has its own form: --format and --key-separator are for lines of text")
        return json_reader(defaults)
    if shape is not None and separator is not None:
        raise ValueError("--format and --key-separator say the same: choose one")
    if separator is not None:
        shape = f"%k{separator.replace('%', '%%')}%s"
    return text_reader("%s" if shape is None else shape, form, defaults)


async def _produce(
    node: Node,
    topic: str,
    lines: Lines,
    reader: Reader,
    ledger: Ledger,
    options: dict[str, str | None],
    *,
    create: bool,
) -> bool:
    """Whether it was interrupted."""
    async with node.connect_aio() as client:
        if create:
            await client.admin.ensure_topic(topic)
        with lines:
            interrupts = Interrupts(lambda: _read_no_more(lines, ledger))
            async with delivering(client, ledger, node.timeout, **options) as producer:
                await _send(producer, topic, lines, reader, ledger)
                if not ledger.sent:
                    await client.admin.partition_count(topic)  # nothing into no topic is no success
        return interrupts.count > 0


def _read_no_more(lines: Lines, ledger: Ledger) -> None:
    lines.stop()
    ledger.settle()
    if waiting := ledger.sent - ledger.acknowledged:
        say(f"{plural(waiting, 'record')} on the way; another interrupt gives up")


async def _send(producer: Producer, topic: str, lines: Lines, reader: Reader, ledger: Ledger) -> None:
    progress = is_watched() and not sys.stdin.isatty()
    while ledger.failure is None and (chunk := await asyncio.to_thread(lines.next_chunk)) is not None:
        for line in chunk:
            try:
                record, partition = reader(line.text)
                delivery = await producer.send_record(topic, record, partition)
            except (ValueError, ClientError) as error:
                raise LineError(line, error) from error
            ledger.add(delivery)
        ledger.settle()
        if progress:
            click.echo(f"\r{ledger}", nl=False, err=True)
    if progress:
        click.echo("\r\x1b[K", nl=False, err=True)


def _report(topic: str, ledger: Ledger, *, interrupted: bool) -> None:
    failure = ledger.failure
    if failure is not None:
        say(str(ledger))
        cause = failure.__cause__ if isinstance(failure, LineError) else failure
        if isinstance(cause, RefusedError) and cause.reason is Refusal.TOPIC_NOT_FOUND:
            hint(f"braid topic create {topic}")
        if isinstance(failure, LineError) and isinstance(cause, ValueError):
            end(USAGE, str(failure))
        raise cause or failure
    if interrupted:
        end(INTERRUPTED, f"interrupted; {ledger}")
    if is_watched():
        click.echo(str(ledger), err=True)
    hint(f"braid consume {topic} -o -{max(min(ledger.sent, 5), 1)}")
