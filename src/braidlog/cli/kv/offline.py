"""`braid kv verify`, `repair`: the files of a store whose node is stopped."""

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
    """Read every byte of the key-value store in the folder DATA, and say whether it is what was written.

    Opens it as its node would, but keeps nothing of what that changes. Of a damaged store it tells what is lost, by
    file and bytes, with the keys that can be named. Changes nothing. Exits with 1 if the store is damaged.

    \b
    note    what a crash leaves behind; the next start puts it right
    fault   broken, but the rest has all of it: nothing is lost
    damage  bytes that were durable are not what they were

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
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@OUTPUT
def repair(*, data: str, dry_run: bool, yes: bool, output: str) -> None:
    """Make the damaged key-value store in the folder DATA whole again.

    Every whole block of its snapshot and every whole entry of its log is kept, and becomes a new snapshot; an entry that leans
    on a lost one is left out, and told. The old files are moved to DATA/quarantine/kv-…, with a report; none is deleted. Then
    the store opens, and its change feed tells every key anew. A repair that is interrupted is simply run again. The node must
    be stopped.

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
    if not yes and not answered("Do this?"):
        click.echo("Nothing was changed.", err=True)
        end(NO)
    report = work.run(SystemClock().now_ms())
    if output == "json":
        print_json(report)
    else:
        click.echo(f"In {report.quarantine}: {', '.join(['report.json', *report.quarantined])}")
        click.echo(f"Repaired: the store has {report.verified.keys} keys, and takes changes again.")
    if not report.verified.sound:
        end(NO)


def _show_report(report: StoreReport) -> None:
    for finding in report.findings:
        _show_finding(finding)
    if report.sound:
        click.echo(f"Sound: {report.keys} keys after {report.sequence} mutations.")
    else:
        click.echo(f"Not sound: {report.refused}")
        click.echo(f"{report.keys} keys can be read. What a repair would do:\n  {report.next_command}")


def _show_plan(plan: StoreRepairPlan, *, dry_run: bool) -> None:
    if not plan.needed:
        click.echo("Nothing to repair.")
        return
    for finding in plan.findings:
        _show_finding(finding)
    click.echo(f"Kept: {plan.keys_kept} keys, in a new snapshot.")
    click.echo(f"Set aside: {', '.join(plan.quarantined)}")
    if dry_run:
        click.echo("Nothing was changed (--dry-run).")


def _show_finding(finding: StoreFinding) -> None:
    where = "" if finding.end == finding.position else f", bytes {finding.position} to {finding.end}"
    click.echo(f"{paint(str(finding.severity), _COLOURS[finding.severity])}: {finding.file}{where}")
    click.echo(f"    {finding.why}\n    {finding.meaning}")
    if finding.keys:
        click.echo(f"    keys: {', '.join(finding.keys)}")
    click.echo()
