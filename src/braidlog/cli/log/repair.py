"""`braid log repair`: prints a repair plan, asks, and repairs a data folder."""

import uuid

import click

from braidlog.cli import NO, end
from braidlog.cli.log.verify import show_report
from braidlog.cli.terminal.arguments import answered
from braidlog.cli.terminal.output import DATA, OUTPUT, lost, paint, print_json, print_table, progress
from braidlog.model.clock import SystemClock
from braidlog.model.errors import BrokerError, Reason
from braidlog.storage.files import OsDisk
from braidlog.tools.layout import Layout
from braidlog.tools.repair.folder import Repair, RepairPlan, RepairReport


@click.command("repair")
@DATA
@click.argument("topic", required=False)
@click.option("--dry-run", is_flag=True, help="Print the repair plan without changing anything.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--drop-unreadable", is_flag=True, help="Also remove batches with a valid checksum whose records do not decode."
)
@click.option(
    "--only-copy", is_flag=True, help="Repair a folder of a cluster, because no other node has an intact copy."
)
@OUTPUT
def repair(
    *, data: str, topic: str | None, dry_run: bool, yes: bool, drop_unreadable: bool, only_copy: bool, output: str
) -> None:
    """Repair the folder DATA, or one TOPIC in it.

    Every intact batch is kept. Damaged bytes are copied to DATA/quarantine, with a report; then the segment is rewritten,
    with empty batches in place of lost offsets, which are never reused. An interrupted repair can be run again. No node
    may have the folder open.

    A node of a cluster copies damaged partitions from other nodes when it starts; its folder is repaired only with
    --only-copy.
    """

    layout = Layout(OsDisk(), data)
    with progress("inspect", layout.data_bytes(layout.choose(topic))) as advance:
        work = Repair(
            layout.disk,
            data,
            SystemClock(),
            topic,
            drop_unreadable=drop_unreadable,
            progress=advance,
            new_id=lambda: uuid.uuid4().hex,
        )
        plan = work.plan()
    if output == "json" and (dry_run or not plan.steps):
        print_json(plan)
    elif output == "table":
        _show_plan(plan, dry_run=dry_run)
    if not dry_run and plan.steps:
        if layout.cluster and not only_copy:
            raise BrokerError(Reason.VERSION_CONFLICT, _belongs_to_cluster(data, layout.cluster))
        if not yes and not answered("Apply this plan?"):
            click.echo("Nothing changed.", err=True)
            end(NO)
        report = work.run()
        if output == "json":
            print_json(report)
        else:
            _show_repaired(report)
        if not report.verified.sound:
            end(NO)
    if plan.beyond_repair:
        end(NO)


def _belongs_to_cluster(data: str, cluster: str) -> str:
    return (
        f"{data} belongs to cluster {cluster}: start its node, which copies damaged partitions from other nodes. A repaired copy "
        "lacks lost records but would count as complete. If no other node has an intact copy: --only-copy"
    )


def _show_plan(plan: RepairPlan, *, dry_run: bool) -> None:
    if plan.steps:
        rows = [[step.action, step.file, step.detail] for step in plan.steps]
        print_table(["ACTION", "FILE", "DETAIL"], rows)
        click.echo()
        click.echo(f"{len(plan.steps)} steps; {lost(plan.offsets_lost)}.")
    for sentence in plan.beyond_repair:
        click.echo(f"{paint('beyond repair', 'red')}: {sentence}")
    if not plan.steps and not plan.beyond_repair:
        click.echo("Nothing to repair.")
    elif dry_run:
        click.echo("Nothing changed (--dry-run).")


def _show_repaired(report: RepairReport) -> None:
    if report.quarantined:
        click.echo(f"Quarantined in {report.folder}/quarantine: {', '.join(report.quarantined)}")
    if report.verified.sound:
        click.echo("Repaired: the folder is intact and accepts writes.")
    else:
        show_report(report.verified)
