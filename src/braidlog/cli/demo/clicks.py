"""`braid demo clicks`: sends the sample events of `tools/clicks.py`, never faster than --rate."""

import asyncio
import random
import secrets
from typing import NamedTuple

import click

from braidlog.cli import say
from braidlog.cli.records.produce import Ledger, deliver, delivering
from braidlog.cli.terminal.connection import Node, with_node
from braidlog.cli.terminal.interrupts import Interrupts
from braidlog.cli.terminal.output import hint, is_watched
from braidlog.client.drivers.contract import Headers
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.retry import wait_at_most
from braidlog.client.session import Client
from braidlog.model.clock import SystemClock
from braidlog.model.record import NewRecord
from braidlog.tools.clicks import Clicks

TICK_SECONDS = 0.05
"""Events that are due within one tick are sent together."""
TURN_EVENTS = 100


@click.command(
    epilog="""\b
Example:
  braid demo clicks --rate 10 &
  braid tail clicks -f '%k %s\\n'
"""
)
@click.option("--topic", default="clicks", show_default=True, help="Topic; created if it does not exist.")
@click.option(
    "-p", "--partitions", type=click.IntRange(1), default=3, show_default=True, help="Partitions of a created topic."
)
@click.option(
    "--rate", type=click.FloatRange(0), default=10.0, show_default=True, help="Events per second; 0: unlimited."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this many events.  [default: at an interrupt]")
@click.option("--producer", help="Producer name in the events.  [default: random]")
@click.option(
    "--seed", type=int, help="Random seed: the same seed and name generate the same events, except for times."
)
@with_node
def clicks(
    node: Node, *, topic: str, partitions: int, rate: float, count: int | None, producer: str | None, seed: int | None
) -> None:
    """Generate JSON events of a web shop, with the session as key: page views, baskets and orders.

    Each event has event_id, type, user, page, aggregate (its session), version (1, 2, 3, … within the session), producer,
    sequence (1, 2, 3, … of this producer) and at; also id (the aggregate), latency_ms and amount, as the template of `braid
    pipeline init` reads them. Producer and sequence are headers too, if the protocol has headers. A consumer can check
    that it received every event once and in order.
    """
    name = producer or f"demo-{secrets.token_hex(4)}"
    source = Clicks(name, random.Random(seed))  # noqa: S311 - sample events
    ledger = Ledger()
    hint(f"braid tail {topic}", "Ctrl-C stops the generator")
    deliver(_run(node, Plan(topic, partitions, rate, count), source, ledger), ledger)
    if ledger.failure is not None:
        say(str(ledger))
        raise ledger.failure
    click.echo(f"{ledger} in {topic} by {name}")
    hint(f"braid consume {topic} -o -5", f"braid topic describe {topic}")


class Plan(NamedTuple):
    """Rate and count, as given on the command line."""

    topic: str
    partitions: int
    rate: float
    events_max: int | None

    def is_done(self, sent: int) -> bool:
        return self.events_max is not None and sent >= self.events_max

    def due_seconds(self, sent: int) -> float:
        """Return when the next event is due, counted from the first event."""
        return sent / self.rate if self.rate else 0.0


async def _run(node: Node, plan: Plan, source: Clicks, ledger: Ledger) -> None:
    stopping = asyncio.Event()
    Interrupts(stopping.set)
    async with node.connect_aio() as client:
        await client.admin.ensure_topic(plan.topic, plan.partitions if client.capabilities.partitions else 1)
        async with delivering(client, ledger, node.timeout, linger_ms=5) as producer:
            await _send(client, producer, plan, source, ledger, stopping)


async def _send(
    client: Client, producer: Producer, plan: Plan, source: Clicks, ledger: Ledger, stopping: asyncio.Event
) -> None:
    clock, loop = SystemClock(), asyncio.get_running_loop()
    began, watched = loop.time(), is_watched()
    while not stopping.is_set() and ledger.failure is None and not plan.is_done(ledger.sent):
        early = began + plan.due_seconds(ledger.sent) - loop.time()
        if early > 0:
            await wait_at_most(stopping, max(early, TICK_SECONDS))
            ledger.settle()
            if watched:
                click.echo(f"\r{ledger}", nl=False, err=True)
            continue
        now_ms = clock.now_ms()
        ledger.add(await producer.send_record(plan.topic, _fitting(client, source.next(now_ms).record(now_ms))))
        if ledger.sent % TURN_EVENTS == 0:
            ledger.settle()
            await asyncio.sleep(0)  # sending does not block while the buffer has space: let the loop handle interrupts
    if watched:
        click.echo("\r\x1b[K", nl=False, err=True)


def _fitting(client: Client, record: NewRecord) -> NewRecord:
    """Return the record without the parts that the protocol cannot carry; the value has all of them."""
    able = client.capabilities
    return NewRecord(
        record.value,
        record.key if able.keys else None,
        record.headers if able.headers is Headers.ANY else (),
        record.timestamp_ms if able.stamps else None,
    )
