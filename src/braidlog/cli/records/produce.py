"""`braid produce`: writes lines, files and JSON as records.

Counts of acknowledged records include only records that the node acknowledged. An interrupt stops reading, and records
already read are still delivered; a second interrupt gives up. The first failure stops reading.
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
    """Counts of sent and acknowledged records, and the first failure."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failure: Exception | None = None
        self._waiting: deque[Delivery] = deque()

    def add(self, delivery: Delivery) -> None:
        self.sent += 1
        self._waiting.append(delivery)

    def settle(self) -> None:
        """Count the completed deliveries at the front of the queue."""
        while self._waiting and self._waiting[0].done():
            try:
                self._waiting.popleft().result()
            except ClientError as error:
                self.failure = self.failure or error
            else:
                self.acknowledged += 1

    @contextmanager
    def noting_failures(self) -> Iterator[None]:
        """Record the first failure instead of raising it; the caller reports it from the ledger."""
        try:
            yield
        except (ClientError, BrokerError, LineError) as error:
            self.failure = self.failure or error

    def __str__(self) -> str:
        if self.acknowledged == self.sent:
            return f"{plural(self.sent, 'record')} acknowledged"
        return f"{self.acknowledged:,} of {plural(self.sent, 'record')} acknowledged"


def deliver(work: Coroutine[Any, Any, T], ledger: Ledger) -> T:
    """Run `work` in its own event loop; on a second interrupt exit with the counts so far."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        end(INTERRUPTED, f"gave up; {ledger}")


class Retries:
    """Prints why the producer retries, once per reason."""

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
    """Yield a producer, then wait for every delivery; failures are in the ledger."""
    producer = client.producer(delivery_timeout=seconds_max, send_timeout=seconds_max, **options)
    tasks = Tasks()
    tasks.every(RETRIES_LOOK_SECONDS, Retries(producer, seconds_max).look, "producer retries")
    try:
        with ledger.noting_failures():
            yield producer
        with ledger.noting_failures():
            await producer.flush()  # failures are in the ledger
        ledger.settle()
    except asyncio.CancelledError:
        client.abandon()  # closing would wait for the same answers again
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
@click.option("-k", "--key", help="Key of records whose line has none.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator between key and value of a line.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of every record; repeatable."
)
@click.option("-p", "--partition", type=click.IntRange(0), help="Partition.  [default: by key]")
@click.option("--timestamp", "timestamp_ms", type=MOMENT, help="Timestamp of every record.  [default: time of sending]")
@click.option("-Z", "--null", "empty_is_none", is_flag=True, help="Write an empty value as null, a tombstone.")
@click.option(
    "-f", "--format", "shape", metavar="FORMAT", help="Format of a line: %k %s %h %p %T, and text between them."
)
@click.option(
    "-D",
    "--delimiter",
    default="\\n",
    show_default=True,
    help="Delimiter of records; may contain \\n, \\t, \\0, \\xNN.",
)
@click.option("--whole", is_flag=True, help="Write each file, or all of standard input, as one record.")
@click.option(
    "--input",
    "form",
    type=click.Choice([*ENCODINGS, "json"]),
    default="text",
    show_default=True,
    help="Keys and values as text, hex or base64; or each record as a line of JSON.",
)
@click.option("--json", "form", flag_value="json", help="Same as --input json: lines of `braid consume --json`.")
@click.option(
    "--acks",
    type=click.Choice(["leader", "all"]),
    help="Replicas that acknowledge a record.  [default: all for kafka and cursus, which detect duplicates; else leader]",
)
@click.option(
    "--at-least-once",
    is_flag=True,
    help="Retry on protocols that cannot detect duplicates: records may be stored twice.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="Compression, if the protocol supports it (kafka, cursus).",
)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
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
    """Write each line of FILEs or of standard input (`-`) to TOPIC as a record.

    Exits when all records are acknowledged. An interrupt stops reading, delivers the records already read, and prints
    how many were acknowledged.
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
            raise ValueError("--format and --key-separator apply to lines of text, not to JSON")
        return json_reader(defaults)
    if shape is not None and separator is not None:
        raise ValueError("--format and --key-separator exclude each other")
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
    """Produce all lines; return whether it was interrupted."""
    async with node.connect_aio() as client:
        if create:
            await client.admin.ensure_topic(topic)
        with lines:
            interrupts = Interrupts(lambda: _read_no_more(lines, ledger))
            async with delivering(client, ledger, node.timeout, **options) as producer:
                await _send(producer, topic, lines, reader, ledger)
                if not ledger.sent:
                    await client.admin.partition_count(topic)  # fails for an unknown topic even without records
        return interrupts.count > 0


def _read_no_more(lines: Lines, ledger: Ledger) -> None:
    lines.stop()
    ledger.settle()
    if waiting := ledger.sent - ledger.acknowledged:
        say(f"{plural(waiting, 'record')} in flight; interrupt again to give up")


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
