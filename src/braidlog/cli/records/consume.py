"""`braid consume`, `braid tail`: records of topics, printed.

Knows: where to begin, when to end, what a terminal may be shown. Refuses to know: how records are written (`text.py`).
Invariants: `consume` ends at what was the end when it began; `tail` ends when it is told to. With --group an offset is committed
only after its record was written out. Who closes the pipe ends the command, without an error.
"""

import fnmatch
import select
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from braidlog.cli import say
from braidlog.cli.records.text import ENCODINGS, TOKENS, writer
from braidlog.cli.terminal.arguments import Decorator, together
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.names import complete_topics
from braidlog.cli.terminal.output import hint, line_of, plural, take_form
from braidlog.cli.terminal.secrets import not_typed
from braidlog.cli.terminal.times import MOMENT
from braidlog.client.blocking import Client, Consumer
from braidlog.client.drivers.contract import ConsumedRecord
from braidlog.client.engine.member import is_pattern
from braidlog.client.errors import Refusal, RefusedError
from braidlog.model.record_json import json_line
from braidlog.model.reporting.node_report import LOCAL_REGISTRY_URL

if TYPE_CHECKING:
    from braidlog.cli.records.decoding import Decoding

POLL_RECORDS = 500
POLL_SECONDS = 0.5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROLS = {**{code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), 127, *range(128, 160))}, 9: "\t"}
"""What could command a terminal, and how it is shown instead."""
_LETTERS = "\n".join(f"  %{letter}  {token.what}" for letter, token in TOKENS.items())


Ends = dict[tuple[str, int], int]
"""Where each partition ended when the command began."""


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    topics: tuple[str, ...]
    offset: str
    partitions: tuple[int, ...]
    count: int | None
    since_ms: int | None
    until_ms: int | None
    group: str | None
    follow: bool

    def wants(self, record: ConsumedRecord) -> bool:
        """Times need not be in order: each record is looked at."""
        at = record.timestamp_ms
        if at is None:
            return True
        return (self.since_ms is None or at >= self.since_ms) and (self.until_ms is None or at < self.until_ms)


class OffsetType(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    """beginning, end, N or -N; kept as it was typed."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if isinstance(value, str) and value not in ("beginning", "end") and not value.removeprefix("-").isdecimal():
            self.fail(f"unknown offset {value!r}; use beginning, end, N or -N", param, ctx)
        return value


def _options(default_offset: str) -> Decorator:
    """What both commands take; they differ in where they begin and when they end."""
    return together(
        click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics),
        click.option(
            "-o",
            "--offset",
            type=OffsetType(),
            default=default_offset,
            show_default=True,
            metavar="beginning|end|N|-N",
            help="Where to begin, in each partition; -N: so many before the end.",
        ),
        click.option(
            "-p",
            "--partition",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            help="Only this one; may be repeated.",
        ),
        click.option("-n", "--count", type=click.IntRange(1), help="End after so many records."),
        click.option("--from", "since_ms", type=MOMENT, help="Records of this time and later."),
        click.option("--until", "until_ms", type=MOMENT, help="Records before this time."),
        click.option(
            "--group",
            help="Read as a member of this group: only its share, from where it has committed; what was printed is committed.",
        ),
        click.option("-f", "--format", "shape", metavar="FORMAT", help="How to print a record, e.g. '%p %o %k %s\\n'."),
        click.option(
            "--output",
            type=click.Choice([*ENCODINGS, "json", "yaml"]),
            default="text",
            show_default=True,
            callback=take_form,
            help="Keys and values as they are, in hex, in base64; or a record a line in JSON, a document in YAML.",
        ),
        click.option("--json", "output", flag_value="json", callback=take_form, help="The same as --output json."),
        click.option("--decode", is_flag=True, help="Values as JSON, by the schemas whose ids they begin with."),
        click.option("--decode-key", is_flag=True, help="The same for keys."),
        click.option(
            "--registry",
            envvar="BRAID_REGISTRY_URL",
            show_envvar=True,
            default=LOCAL_REGISTRY_URL,
            show_default=True,
            metavar="URL",
            callback=not_typed,
            help="The schema registry for --decode and --decode-key.",
        ),
    )


_EPILOG = f"""\b
Example:
  braid {{command}} clicks -f '%p/%o %k: %s\\n'
  braid {{command}} clicks --json | jq .value
  braid {{command}} orders 'log-*' -f '%t %s\\n'         several topics, or all that match
  braid {{command}} orders --decode | jq .total         values of Avro or Protobuf, by the schema registry
\b
In a format:
{_LETTERS}
  %%, \\n, \\t, \\r, \\0, \\xNN
"""


@click.command(epilog=_EPILOG.replace("{command}", "consume"))
@_options("beginning")
@with_client
def consume(client: Client, **wanted: Any) -> None:  # noqa: ANN401 - what `_options` declares
    """Print the records of each TOPIC that are there now, then end. `braid tail` waits for more.

    Within a partition records come in order; partitions take turns. A TOPIC may be a pattern of names, as a shell has them.
    """
    _run(client, wanted, follow=False)


@click.command(epilog=_EPILOG.replace("{command}", "tail"))
@_options("end")
@with_client
def tail(client: Client, **wanted: Any) -> None:  # noqa: ANN401 - what `_options` declares
    """Print the records of each TOPIC as they come, until interrupted, until -n records, or until nobody reads them any more.

    It begins at the end; `-o -5` prints the last five of each partition first. A TOPIC may be a pattern of names, as a shell
    has them: topics that match when it begins, or with --group whenever they are made.
    """
    _run(client, wanted, follow=True)


def _run(client: Client, wanted: dict[str, Any], *, follow: bool) -> None:
    decoding = _decoding(wanted.pop("registry"), values=wanted.pop("decode"), keys=wanted.pop("decode_key"))
    write = _writer(wanted.pop("shape"), wanted.pop("output"), decoding)
    options = ConsumeOptions(follow=follow, **wanted)
    if options.until_ms is not None:
        client.require("timestamps")
    try:
        topics = _matching(client, options.topics)
        ends = {(topic, at): end for topic in topics for at, end in enumerate(_ends(client, topic))}
        _check_partitions(options, ends)
        with client.consumer(wait_ms=int(POLL_SECONDS * 1000)) as consumer:
            _begin(client, consumer, options, topics)
            printed = _print(consumer, options, ends, write)
    except RefusedError as error:
        if error.reason is Refusal.TOPIC_NOT_FOUND:
            hint("braid topic list")
        raise
    if not printed and not options.follow:
        hint(f"braid tail {' '.join(options.topics)}")


def _matching(client: Client, wanted: Iterable[str]) -> list[str]:
    """Topics by their names, and those that match a pattern now."""
    found: list[str] = []
    for topic in wanted:
        if not is_pattern(topic):
            found.append(topic)
        elif not (matches := fnmatch.filter(client.admin.list_topics(), topic)):
            raise RefusedError(Refusal.TOPIC_NOT_FOUND, client.dialect, "", f"no topic matches {topic!r}")
        else:
            found += matches
    return list(dict.fromkeys(found))


def _ends(client: Client, topic: str) -> list[int]:
    return [span.latest for span in client.admin.describe_topic(topic).partitions]


def _decoding(registry: str, *, values: bool, keys: bool) -> "Decoding | None":
    if not (values or keys):
        return None
    from braidlog.cli.records.decoding import Decoding  # noqa: PLC0415 - schemas are read only if it was asked for

    return Decoding(registry, values=values, keys=keys)


def _writer(shape: str | None, output: str, decoding: "Decoding | None") -> Callable[[ConsumedRecord], bytes]:
    if output == "json":
        if shape is not None:
            raise click.UsageError("--format and --json are two ways to print: choose one")
        return lambda record: _json_line(record, decoding)
    try:
        write = writer("%s\\n" if shape is None else shape, output)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    shown = write if decoding is None else lambda record: write(decoding.decoded(record))
    return (lambda record: _harmless(shown(record))) if sys.stdout.isatty() else shown


def _json_line(record: ConsumedRecord, decoding: "Decoding | None") -> bytes:
    decoded = () if decoding is None else (decoding.value(record), decoding.key(record))
    return f"{line_of(json_line(record, *decoded).rstrip())}\n".encode()


def _harmless(text: bytes) -> bytes:
    """What a terminal may be shown: nothing that somebody else wrote shall move its cursor or rename its window."""
    return text.decode("utf-8", "backslashreplace").translate(_CONTROLS).encode()


def _check_partitions(options: ConsumeOptions, ends: Ends) -> None:
    for topic in dict.fromkeys(topic for topic, _ in ends):
        count = sum(each == topic for each, _ in ends)
        for number in options.partitions:
            if number >= count:
                raise click.UsageError(f"{topic} has {plural(count, 'partition')}; there is no {number}")
    if options.group is not None and options.partitions:
        raise click.UsageError("a group assigns partitions itself: pass --group or --partition, not both")


def _begin(client: Client, consumer: Consumer, options: ConsumeOptions, topics: list[str]) -> None:
    since = None if options.since_ms is None else _EPOCH + timedelta(milliseconds=options.since_ms)
    start: Any = since or {"beginning": "earliest", "end": "latest"}.get(options.offset, 0)
    if options.group is not None:
        if start == 0:
            raise click.UsageError(
                "a group begins where it has committed: pass -o beginning, -o end or --from for the rest"
            )
        consumer.subscribe(*options.topics, group=options.group, start=start)
        return
    for topic in topics:
        if since is not None or options.offset in ("beginning", "end"):
            consumer.assign(topic, options.partitions or None, start=start)
            continue
        spans = client.admin.describe_topic(topic).partitions
        wanted = int(options.offset)
        numbers = options.partitions or range(len(spans))
        if wanted > (end_max := max(spans[number].latest for number in numbers)):
            say(f"{topic} ends at offset {end_max}: there is nothing at {wanted} yet")
        for number in numbers:
            first, last = spans[number].earliest, spans[number].latest
            consumer.assign(topic, [number], start=min(max(wanted if wanted >= 0 else last + wanted, first), last))


def _print(consumer: Consumer, options: ConsumeOptions, ends: Ends, write: Callable[[ConsumedRecord], bytes]) -> int:
    """How many were printed."""
    out = sys.stdout.buffer
    left = sys.maxsize if options.count is None else options.count
    printed = 0
    while left > 0 and (options.follow or not _is_done(consumer, ends)):
        for record in consumer.poll(min(POLL_RECORDS, left), POLL_SECONDS):
            if options.wants(record) and (
                options.follow or record.offset < ends.get((record.topic, record.partition), 0)
            ):
                out.write(write(record))
                left -= 1
                printed += 1
        out.flush()
        if options.group is not None:
            consumer.commit()
        if _no_active_members(out):
            break
    return printed


def _is_done(consumer: Consumer, ends: Ends) -> bool:
    """What was made meanwhile is not waited for."""
    return all(consumer.reached(*place) >= ends.get(place, 0) for place in consumer.assignment)


def _no_active_members(out: BinaryIO) -> bool:
    """Whether the other end of a pipe is closed: who waits for records would learn of it only when the next one comes."""
    try:
        descriptor = out.fileno()
    except (OSError, ValueError):
        return False
    watch = select.poll()
    watch.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))
