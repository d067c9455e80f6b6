"""`braid consume`, `braid tail`: print records of topics.

`consume` ends at the log end of its start; `tail` ends at an interrupt. With --group an offset is committed only after
its record was written out. A closed output pipe ends the command without an error.
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
"""Control characters, and the escapes that a terminal shows instead."""
_LETTERS = "\n".join(f"  %{letter}  {token.what}" for letter, token in TOKENS.items())


Ends = dict[tuple[str, int], int]
"""Log end offset of each partition at the start of the command."""


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `consume` and `tail`."""

    topics: tuple[str, ...]
    offset: str
    partitions: tuple[int, ...]
    count: int | None
    since_ms: int | None
    until_ms: int | None
    group: str | None
    follow: bool

    def wants(self, record: ConsumedRecord) -> bool:
        """Return whether a record is in the time range; checks each record, since times may be out of order."""
        at = record.timestamp_ms
        if at is None:
            return True
        return (self.since_ms is None or at >= self.since_ms) and (self.until_ms is None or at < self.until_ms)


class OffsetType(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in newer clicks only
    """beginning, end, N or -N, kept as typed."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        if isinstance(value, str) and value not in ("beginning", "end") and not value.removeprefix("-").isdecimal():
            self.fail(f"unknown offset {value!r}; use beginning, end, N or -N", param, ctx)
        return value


def _options(default_offset: str) -> Decorator:
    """Add the options that both commands share."""
    return together(
        click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics),
        click.option(
            "-o",
            "--offset",
            type=OffsetType(),
            default=default_offset,
            show_default=True,
            metavar="beginning|end|N|-N",
            help="Start offset in each partition; -N: N records before the end.",
        ),
        click.option(
            "-p",
            "--partition",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            help="Read only this partition; repeatable.",
        ),
        click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many records."),
        click.option("--from", "since_ms", type=MOMENT, help="Only records of this time and later."),
        click.option("--until", "until_ms", type=MOMENT, help="Only records before this time."),
        click.option(
            "--group",
            help="Read as a member of this group, from its committed offsets; commits the offsets of printed records.",
        ),
        click.option("-f", "--format", "shape", metavar="FORMAT", help="Format of a record, e.g. '%p %o %k %s\\n'."),
        click.option(
            "--output",
            type=click.Choice([*ENCODINGS, "json", "yaml"]),
            default="text",
            show_default=True,
            callback=take_form,
            help="Keys and values as text, hex or base64; or each record as a line of JSON, or a YAML document.",
        ),
        click.option("--json", "output", flag_value="json", callback=take_form, help="Same as --output json."),
        click.option("--decode", is_flag=True, help="Decode values to JSON by the schema ids that they begin with."),
        click.option("--decode-key", is_flag=True, help="Decode keys likewise."),
        click.option(
            "--registry",
            envvar="BRAID_REGISTRY_URL",
            show_envvar=True,
            default=LOCAL_REGISTRY_URL,
            show_default=True,
            metavar="URL",
            callback=not_typed,
            help="URL of the schema registry for --decode and --decode-key.",
        ),
    )


_EPILOG = f"""\b
Example:
  braid {{command}} clicks -f '%p/%o %k: %s\\n'
  braid {{command}} clicks --json | jq .value
  braid {{command}} orders 'log-*' -f '%t %s\\n'         several topics and patterns
  braid {{command}} orders --decode | jq .total         Avro or Protobuf values, by the schema registry
\b
Format letters:
{_LETTERS}
  %%, \\n, \\t, \\r, \\0, \\xNN
"""


@click.command(epilog=_EPILOG.replace("{command}", "consume"))
@_options("beginning")
@with_client
def consume(client: Client, **wanted: Any) -> None:  # noqa: ANN401 - what `_options` declares
    """Print the existing records of each TOPIC, then exit; `braid tail` waits for more.

    Records of a partition come in order; partitions are interleaved. A TOPIC may be a shell pattern.
    """
    _run(client, wanted, follow=False)


@click.command(epilog=_EPILOG.replace("{command}", "tail"))
@_options("end")
@with_client
def tail(client: Client, **wanted: Any) -> None:  # noqa: ANN401 - what `_options` declares
    """Print new records of each TOPIC as they arrive, until interrupted, after -n records, or until the output closes.

    Starts at the end; `-o -5` first prints the last five records of each partition. A TOPIC may be a shell pattern, which
    matches the topics that exist at the start, and with --group also topics that are created later.
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
    """Resolve names and patterns to existing topics."""
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
    from braidlog.cli.records.decoding import Decoding  # noqa: PLC0415 - only for --decode

    return Decoding(registry, values=values, keys=keys)


def _writer(shape: str | None, output: str, decoding: "Decoding | None") -> Callable[[ConsumedRecord], bytes]:
    if output == "json":
        if shape is not None:
            raise click.UsageError("--format and --json exclude each other")
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
    """Escape control characters, so that a record cannot control the terminal."""
    return text.decode("utf-8", "backslashreplace").translate(_CONTROLS).encode()


def _check_partitions(options: ConsumeOptions, ends: Ends) -> None:
    for topic in dict.fromkeys(topic for topic, _ in ends):
        count = sum(each == topic for each, _ in ends)
        for number in options.partitions:
            if number >= count:
                raise click.UsageError(f"{topic} has {plural(count, 'partition')}; partition {number} does not exist")
    if options.group is not None and options.partitions:
        raise click.UsageError("--group and --partition exclude each other: the group assigns partitions")


def _begin(client: Client, consumer: Consumer, options: ConsumeOptions, topics: list[str]) -> None:
    since = None if options.since_ms is None else _EPOCH + timedelta(milliseconds=options.since_ms)
    start: Any = since or {"beginning": "earliest", "end": "latest"}.get(options.offset, 0)
    if options.group is not None:
        if start == 0:
            raise click.UsageError(
                "a group starts at its committed offsets: pass -o beginning, -o end or --from for partitions without one"
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
            say(f"{topic} ends at offset {end_max}: no record at {wanted} yet")
        for number in numbers:
            first, last = spans[number].earliest, spans[number].latest
            consumer.assign(topic, [number], start=min(max(wanted if wanted >= 0 else last + wanted, first), last))


def _print(consumer: Consumer, options: ConsumeOptions, ends: Ends, write: Callable[[ConsumedRecord], bytes]) -> int:
    """Print records; return how many were printed."""
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
    """Return whether all partitions have reached their end of the start; ignores later topics."""
    return all(consumer.reached(*place) >= ends.get(place, 0) for place in consumer.assignment)


def _no_active_members(out: BinaryIO) -> bool:
    """Return whether the output pipe is closed, which a write would notice only at the next record."""
    try:
        descriptor = out.fileno()
    except (OSError, ValueError):
        return False
    watch = select.poll()
    watch.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in watch.poll(0))
