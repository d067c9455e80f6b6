"""`braid txn list`, `describe`, `producers`, `abort`."""

import click
from msgspec.structs import astuple

from braidlog.cli import NO, end
from braidlog.cli.terminal.arguments import YES, confirm
from braidlog.cli.terminal.connection import with_client
from braidlog.cli.terminal.output import LISTING, OUTPUT, hint, moment, plural, print_json, print_listing, print_table
from braidlog.cli.terminal.watch import watched
from braidlog.client.blocking import Client
from braidlog.client.drivers.transactions import OPEN, PartitionProducer

NAME = click.argument("name", metavar="ID")


@click.command("list", epilog="Example: braid txn list --open")
@click.option("--open", "open_only", is_flag=True, help="Only open transactions.")
@LISTING
@with_client
@watched
def list_(client: Client, output: str, *, open_only: bool) -> None:
    """List the transactional ids of all nodes with the state of their last transaction."""
    found = {each.transactional_id: each for each in client.admin.list_transactions(open_only=open_only)}
    empty = ("No transaction is open." if open_only else "No transactions.",)
    head = ["TRANSACTIONAL-ID", "STATE", "PRODUCER-ID"]
    print_listing(list(found), output, lambda names: [found[name] for name in names], head, empty, "braid txn describe")


@click.command(epilog="Example: braid txn describe billing-1 -o json")
@NAME
@OUTPUT
@with_client
def describe(client: Client, name: str, output: str) -> None:
    """Describe the last transaction of the transactional id ID: state, producer, start and partitions."""
    found = client.admin.describe_transaction(name)
    if output == "json":
        print_json(found)
        return
    began = "" if found.started_ms is None else f", began {moment(found.started_ms)}"
    click.echo(f"{name}: {found.state}{began}, times out after {found.timeout_ms} ms")
    click.echo(f"  producer {found.producer_id}, epoch {found.producer_epoch}")
    if found.partitions:
        print_table(["TOPIC", "PARTITION"], map(astuple, found.partitions), indent="  ")
    if found.state == OPEN:
        hint(f"braid txn abort {name}")


@click.command(epilog="Example: braid txn producers orders --open -o json")
@click.argument("topic")
@click.option("--open", "open_only", is_flag=True, help="Only producers with an open transaction.")
@OUTPUT
@with_client
def producers(client: Client, topic: str, output: str, *, open_only: bool) -> None:
    """List the producers whose last sequence the partitions of TOPIC remember.

    Consumers with `read_committed` wait at OPEN-SINCE, the first offset of an open transaction.
    """
    found = [each for each in client.admin.list_producers(topic) if each.open_since is not None or not open_only]
    if output == "json":
        print_json(found)
        return
    if not found:
        click.echo(f"{topic} has no producers{' with an open transaction' if open_only else ''}", err=True)
        return
    head = ["PARTITION", "PRODUCER-ID", "EPOCH", "LAST-SEQUENCE", "LAST-WRITE", "OPEN-SINCE"]
    rows = [
        (each.partition, each.producer_id, each.producer_epoch, each.last_sequence, _moment(each), each.open_since)
        for each in found
    ]
    print_table(head, rows)


def _moment(each: PartitionProducer) -> str | None:
    return None if each.last_timestamp_ms is None else moment(each.last_timestamp_ms)


@click.command(epilog="Example: braid txn abort billing-1 --yes")
@NAME
@YES
@with_client
def abort(client: Client, name: str, *, yes: bool) -> None:
    """Abort the open transaction of the transactional id ID, and fence its producer.

    Its records and offsets are discarded. A fenced producer has to be restarted.
    """
    found = client.admin.describe_transaction(name)
    if found.state != OPEN:
        end(NO, f"{name} has no open transaction, its state is {found.state}")
    confirm(f"Abort the transaction of {name} in {plural(len(found.partitions), 'partition')}?", yes=yes)
    client.admin.abort_transaction(found)
    click.echo(f"aborted the transaction of {name}")
