"""`braid log verify`: verifies every byte of a data folder."""

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
    """Verify every byte of the folder DATA, or of one TOPIC in it, without changing anything.

    Checks segments (header, mark, every batch and its records), indexes, checkpoints, snapshots, and the folder against
    each other. Exits with 1 if anything is damaged.

    \b
    note    left by a crash; opening the log repairs it
    fault   broken, but rebuilt from other files: no record is lost
    damage  durable bytes have changed
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
        click.echo(f"Intact: {size(report.bytes_read)} read.")
    else:
        count = sum(finding.offsets_lost for finding in findings)
        broken = sum(1 for finding in findings if finding.severity is not Severity.NOTE)
        noun = "problem" if broken == 1 else "problems"
        click.echo(f"Damaged: {broken} {noun}, {lost(count)}. To see the repair plan:")
        click.echo(f"  {report.next_command}")


def _verdict(partition: PartitionReport) -> str:
    severities = {str(finding.severity) for finding in partition.findings}
    if "damage" in severities:
        count = sum(finding.offsets_lost for finding in partition.findings)
        return paint(f"damaged, {lost(count)}", "red")
    return paint("faulty, no record lost", "yellow") if "fault" in severities else "intact"


_COLOURS = {"note": "cyan", "fault": "yellow", "damage": "red"}


def _finding_lines(finding: Finding) -> Iterator[str]:
    where = "" if finding.end == finding.position else f", bytes {finding.position} to {finding.end}"
    owner = "" if finding.topic is None else f" {finding.topic}"
    if finding.partition is not None:
        owner += f"/{finding.partition}"
    yield f"{paint(str(finding.severity), _COLOURS[finding.severity])} [{finding.kind}]{owner}: {finding.file}{where}"
    yield f"    {finding.why}"
    yield f"    {finding.meaning}"
