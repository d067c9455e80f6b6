"""`braid kv verify`, `repair`: check and repair the store of a stopped node."""

import click

from braidlog.cli import NO, end
from braidlog.cli.terminal.arguments import answered
from braidlog.cli.terminal.output import DATA, OUTPUT, paint, print_json
from braidlog.model.clock import SystemClock
from braidlog.storage.files import OsDisk
from braidlog.tools.keyvalue.findings import StoreFinding, StoreReport
from braidlog.tools.keyvalue.inspect import node_of, verify_store
from braidlog.tools.keyvalue.repair import StoreRepair, StoreRepairPlan

_COLOURS = {"note": "cyan", "fault": "yellow", "damage": "red"}


@click.command("verify")
@DATA
@OUTPUT
def verify(data: str, output: str) -> None:
    """Verify every byte of the key-value store in the folder DATA.

    Opens the store as its node would, without writing. Reports lost data of a damaged store by file and byte range, with
    the affected keys if known. Exits with 1 if the store is damaged.

    \b
    note    left by a crash; the next start repairs it
    fault   broken, but redundant: no data is lost
    damage  durable bytes have changed

    \b
    Example:
      braid kv verify ./data || braid kv repair --dry-run ./data
    """
    disk = OsDisk()
    report = verify_store(disk, data, node_of(disk, data))
    if output == "json":
        print_json(report)
    else:
        _show_report(report)
    if not report.sound:
        end(NO)


@click.command("repair")
@DATA
@click.option("--dry-run", is_flag=True, help="Print the repair plan without changing anything.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@OUTPUT
def repair(*, data: str, dry_run: bool, yes: bool, output: str) -> None:
    """Repair the damaged key-value store in the folder DATA of a stopped node.

    Every intact block of the snapshot and every intact entry of the log is kept and written to a new snapshot. An entry
    that depends on a lost entry is dropped and reported. The old files move to DATA/quarantine/kv-…, with a report; none
    is deleted. Afterwards the store opens, and its change feed emits every key again. An interrupted repair can be run
    again.

    \b
    Example:
      braid kv repair --dry-run ./data
      braid kv repair ./data
    """
    disk = OsDisk()
    work = StoreRepair(disk, data, node_of(disk, data))
    plan = work.plan()
    if output == "json" and (dry_run or not plan.needed):
        print_json(plan)
    elif output == "table":
        _show_plan(plan, dry_run=dry_run)
    if dry_run or not plan.needed:
        return
    if not yes and not answered("Apply this plan?"):
        click.echo("Nothing changed.", err=True)
        end(NO)
    report = work.run(SystemClock().now_ms())
    if output == "json":
        print_json(report)
    else:
        click.echo(f"Quarantined in {report.quarantine}: {', '.join(['report.json', *report.quarantined])}")
        click.echo(f"Repaired: the store has {report.verified.keys} keys and accepts writes.")
    if not report.verified.sound:
        end(NO)


def _show_report(report: StoreReport) -> None:
    for finding in report.findings:
        _show_finding(finding)
    if report.sound:
        click.echo(f"Intact: {report.keys} keys after {report.sequence} mutations.")
    else:
        click.echo(f"Damaged: {report.refused}")
        click.echo(f"{report.keys} keys can be read. To see the repair plan:\n  {report.next_command}")


def _show_plan(plan: StoreRepairPlan, *, dry_run: bool) -> None:
    if not plan.needed:
        click.echo("Nothing to repair.")
        return
    for finding in plan.findings:
        _show_finding(finding)
    click.echo(f"Keeps {plan.keys_kept} keys in a new snapshot.")
    click.echo(f"Quarantines: {', '.join(plan.quarantined)}")
    if dry_run:
        click.echo("Nothing changed (--dry-run).")


def _show_finding(finding: StoreFinding) -> None:
    where = "" if finding.end == finding.position else f", bytes {finding.position} to {finding.end}"
    click.echo(f"{paint(str(finding.severity), _COLOURS[finding.severity])}: {finding.file}{where}")
    click.echo(f"    {finding.why}\n    {finding.meaning}")
    if finding.keys:
        click.echo(f"    keys: {', '.join(finding.keys)}")
    click.echo()
