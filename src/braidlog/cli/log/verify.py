"""`braid log verify`: is every byte what was written?"""

from collections.abc import Iterator

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.output import DATA, OUTPUT, lost, paint, print_json, print_table, progress, size
from braidlog.storage.files import OsDisk
from braidlog.tools import verify as tool
from braidlog.tools.findings import Finding, PartitionReport, Severity, VerifyReport
from braidlog.tools.layout import Layout


@click.command("verify")
@DATA
@click.argument("topic", required=False)
@OUTPUT
def verify(data: str, topic: str | None, output: str) -> None:
    """Read every byte of the folder DATA, or of one TOPIC in it, and say whether it is what was written.

    Checks segments (head, mark, every batch and its records), indexes, checkpoints, snapshots, and the folder itself against each
    other. Changes nothing. Exits with 1 if anything is damaged.

    \b
    note    what a crash leaves behind; opening the log puts it right
    fault   broken, but made again from the rest: no record is lost
    damage  bytes that were durable are not what they were
    """
    layout = Layout(OsDisk(), data)
    with progress("verify", layout.data_bytes(layout.choose(topic))) as advance:
        report = tool.verify(layout.disk, data, topic, progress=advance, layout=layout)
    if output == "json":
        print_json(report)
    else:
        show_report(report)
    if not report.sound:
        end(NO)


def show_report(report: VerifyReport) -> None:
    if report.partitions:
        rows = [
            [
                partition.topic,
                partition.partition,
                f"[{partition.start_offset}, {partition.end_offset})",
                partition.segments,
                partition.batches,
                partition.records,
                size(partition.bytes_read),
                _verdict(partition),
            ]
            for partition in report.partitions
        ]
        head = ["TOPIC", "PARTITION", "OFFSETS", "SEGMENTS", "BATCHES", "RECORDS", "READ", "VERDICT"]
        print_table(head, rows)
    findings = report.all_findings()
    for finding in findings:
        click.echo()
        click.echo("\n".join(_finding_lines(finding)))
    click.echo()
    if report.sound:
        click.echo(f"Sound: {size(report.bytes_read)} read.")
    else:
        count = sum(finding.offsets_lost for finding in findings)
        broken = sum(1 for finding in findings if finding.severity is not Severity.NOTE)
        noun = "thing is" if broken == 1 else "things are"
        click.echo(f"Not sound: {broken} {noun} broken, {lost(count)}. What a repair would do:")
        click.echo(f"  {report.next_command}")


def _verdict(partition: PartitionReport) -> str:
    severities = {str(finding.severity) for finding in partition.findings}
    if "damage" in severities:
        count = sum(finding.offsets_lost for finding in partition.findings)
        return paint(f"damaged, {lost(count)}", "red")
    return paint("faulty, nothing lost", "yellow") if "fault" in severities else "sound"


_COLOURS = {"note": "cyan", "fault": "yellow", "damage": "red"}


def _finding_lines(finding: Finding) -> Iterator[str]:
    where = "" if finding.end == finding.position else f", bytes {finding.position} to {finding.end}"
    owner = "" if finding.topic is None else f" {finding.topic}"
    if finding.partition is not None:
        owner += f"/{finding.partition}"
    yield f"{paint(str(finding.severity), _COLOURS[finding.severity])} [{finding.kind}]{owner}: {finding.file}{where}"
    yield f"    {finding.why}"
    yield f"    {finding.meaning}"
