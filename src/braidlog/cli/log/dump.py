"""`braid log dump`: prints the files of a partition line by line."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
import msgspec

from braidlog.cli import NO, end
from braidlog.cli.records.text import ENCODINGS
from braidlog.cli.terminal.output import DATA, LINES, line_of, moment, paint, shown
from braidlog.model.record_json import json_bytes
from braidlog.storage.files import OsDisk
from braidlog.tools.dump import BatchLine, DamageLine, IndexLine, PartitionDump, RecordLine, StateLine

Line = RecordLine | BatchLine | DamageLine | IndexLine | StateLine


@click.command("dump")
@DATA
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), default=0, show_default=True, help="Partition to print.")
@click.option("--from", "first", type=click.IntRange(min=0), help="First offset.  [default: the start of the log]")
@click.option("--to", "upto", type=click.IntRange(min=0), help="Stop before this offset.  [default: the end]")
@click.option("--records", "what", flag_value="records", default=True, help="Print one line per record (the default).")
@click.option(
    "--batches",
    "what",
    flag_value="batches",
    help="Print one line per batch: position, offsets, epoch, codec, producer.",
)
@click.option("--index", "what", flag_value="index", help="Print the entries of the indexes.")
@click.option(
    "--state", "what", flag_value="state", help="Print checkpoints and snapshots: producers, transactions, epochs."
)
@click.option("-n", "count_max", type=click.IntRange(min=1), help="Stop after this many lines.")
@click.option(
    "--values",
    type=click.Choice(["text", "hex", "base64", "none"]),
    default="text",
    show_default=True,
    help="Encoding of keys, values and header values; `text` escapes invalid UTF-8, and in JSON equals `braid consume --json`.",
)
@LINES
def dump(  # noqa: PLR0913 - one parameter an option
    *,
    data: str,
    topic: str,
    partition: int,
    first: int | None,
    upto: int | None,
    what: str,
    count_max: int | None,
    values: str,
    output: str,
) -> None:
    """Print the files of TOPIC in the folder DATA.

    Includes records of open and aborted transactions. Each damaged range is one line, and the data after it is printed;
    the exit code is then 1.
    """

    source = PartitionDump(OsDisk(), data, topic, partition)
    lines: Iterator[Line]
    if what in ("records", "batches"):
        lines = source.records(first, upto) if what == "records" else source.batches(first, upto)
    else:
        lines = source.index() if what == "index" else source.state()
    damaged, place = False, {"topic": topic, "partition": partition}
    for line in islice(lines, count_max):
        damaged |= isinstance(line, DamageLine)
        click.echo(line_of(_as_json(line, values, place)) if output == "json" else _as_text(line, values))
    if damaged:
        end(NO)


def _plain(data: bytes | None, values: str) -> str | None:
    if data is None or values == "none":
        return None
    if values == "text":
        return shown(data)
    return ENCODINGS[values].write(data).decode()


def _as_json(line: Line, values: str, place: dict[str, Any]) -> bytes:
    """Format a line as `braid consume --json` does, unless `--values` says otherwise; marks transaction markers."""
    fields: dict[str, Any] = {name: getattr(line, name) for name in line.__struct_fields__}
    if isinstance(line, DamageLine):
        fields = {"damage": fields}
    elif isinstance(line, RecordLine):
        write = json_bytes if values == "text" else lambda data: _plain(data, values)
        fields = place | fields | {"key": write(line.key), "value": write(line.value)}
        fields["headers"] = [{"name": name, "value": write(value)} for name, value in line.headers]
        for name in ("key", "value", "headers") if values == "none" else ():
            del fields[name]
        if line.marker is None:
            del fields["marker"]
    return msgspec.json.encode(fields)


def _as_text(line: Line, values: str) -> str:
    if isinstance(line, RecordLine):
        return _record_text(line, values)
    if isinstance(line, BatchLine):
        producer = "" if line.producer_id < 0 else f" producer={line.producer_id}/{line.producer_epoch}"
        sequence = "" if line.base_sequence < 0 else f" sequence={line.base_sequence}"
        marker = f" {line.marker}" if line.marker else " transactional" if line.transactional else ""
        return (
            f"{line.file}:{line.position} [{line.first_offset}, {line.next_offset}) records={line.records} "
            f"bytes={line.size_bytes} epoch={line.leader_epoch} codec={line.compression}{producer}{sequence}{marker} "
            f"time={moment(line.max_timestamp_ms)} crc=ok"
        )
    if isinstance(line, DamageLine):
        to = "the end" if line.next_offset is None else f"offset {line.next_offset}"
        where = f"{line.file}:{line.position} to {line.end}, offset {line.first_offset} to {to}"
        return f"{paint('DAMAGE', 'red')} {where}: {line.why}"
    if isinstance(line, IndexLine):
        if line.fault is not None:
            return f"{paint('FAULT', 'yellow')} {line.file}: {line.fault}"
        kind = "end" if line.seal else "entry"
        return f"{line.file} {kind} offset={line.offset} position={line.position} latest-before={line.timestamp_ms}"
    return _state_text(line)


def _record_text(line: RecordLine, values: str) -> str:
    parts = [str(line.offset), moment(line.timestamp_ms)]
    if line.marker is not None:
        parts.append(f"({line.marker} of a transaction)")
    elif values != "none":
        if line.key is not None:
            parts.append(f"key={_plain(line.key, values)}")
        parts += [f"{name}:{'null' if value is None else _plain(value, values)}" for name, value in line.headers]
        parts.append("null" if line.value is None else str(_plain(line.value, values)))
    return "  ".join(parts)


def _state_text(line: StateLine) -> str:
    image = line.image
    if image is None:
        return f"{paint('FAULT', 'yellow')} {line.file}: {line.fault}"
    what = " (superseded)" if line.fault else ""
    stop = " clean-stop" if image.clean_stop else ""
    return (
        f"{line.file}{what} offsets=[{image.start_offset}, {image.end_offset}) cleaned={image.cleaned_offset} "
        f"epochs={image.epochs} producers={len(image.producers)} open={image.open_transactions} "
        f"aborted={len(image.aborted_transactions)}{stop}"
    )
