"""kill -9 under load: engines that stage, commit and, whenever they are not sure, replay; each batch counts once.

Each engine is one sink. It does what Spark's driver does: two tasks stage, one request commits; after any error it asks what
counts, and stages the batch anew if it does not. The node is killed at random moments.
`make kill KILL_ROUNDS=100` does it for longer.
"""

import asyncio
import os
import random
from pathlib import Path

from tests.client.dialects import until
from tests.client.drivers.kafka.test_staging import committed, driver_of, section

from braidlog.client.drivers.kafka.driver import KafkaDriver
from braidlog.client.drivers.kafka.staging import BatchWriter, Sinks, Stage, coordinator_name
from braidlog.client.engine.retry import Policy
from braidlog.client.errors import ClientError
from braidlog.model.stage_ids import stage_name
from braidlog.testing.server import ServerProcess

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))
ENGINES, TASKS, PARTITIONS = 3, 2, 2
LIFE_SECONDS_MAX = 60
HASTY = Policy(retry_timeout=0.1, backoff_max=0.05)
"""Gives up soon: most kills become a replay, some are waited for."""


class Engine:
    def __init__(self, sink: str, driver: KafkaDriver, rng: random.Random) -> None:
        self.sink = sink
        self.topic = f"of-{sink}"
        self.acknowledged = self.replays = self.attempts = 0
        self._driver = driver
        self._rng = rng
        self._sinks = Sinks(driver, HASTY)

    def wanted(self) -> list[bytes]:
        return sorted(b"%d/%d" % (batch, task) for batch in range(self.acknowledged) for task in range(TASKS))

    async def run(self, done: asyncio.Event) -> None:
        while not done.is_set():
            await self._batch()
            self.acknowledged += 1

    async def _batch(self) -> None:
        """Until it counts, whatever it takes."""
        while True:
            self.attempts += 1
            try:
                if await self._sinks.state(self.sink, "me") >= self.acknowledged:
                    return
                stages = [await self._stage(task) for task in range(TASKS)]
                await self._sinks.commit(self.sink, self.acknowledged, stages, "me")
            except ClientError:
                self.replays += 1
                await asyncio.sleep(0.01)
                continue
            return

    async def _stage(self, task: int) -> Stage:
        """Each task writes to every partition; some attempts are of the name that an earlier one had."""
        number = self.attempts if self._rng.random() < 0.7 else 0
        writer = BatchWriter(
            self._driver,
            HASTY,
            stage=stage_name(self.sink, self.acknowledged, f"{task}-{number}"),
            coordinator=coordinator_name(self.sink),
            timeout_ms=60_000,
        )
        try:
            await writer.begin()
            await writer.add([(self.topic, partition) for partition in range(PARTITIONS)])
            for partition in range(PARTITIONS):
                sealed = writer.seal((self.topic, partition), section(b"%d/%d" % (self.acknowledged, task)))
                await writer.send(sealed)
            await writer.flush()
        finally:
            await writer.close()
        assert writer.stage is not None
        return writer.stage


async def kill(server: ServerProcess, engines: list[Engine], rng: random.Random, done: asyncio.Event) -> None:
    """Again and again, after so many batches and a few milliseconds more; the last life ends well."""
    for round_number in range(ROUNDS + 1):
        wanted = sum(each.acknowledged for each in engines) + rng.randrange(5, 40)
        await until(lambda wanted=wanted: sum(each.acknowledged for each in engines) >= wanted, "batches")  # type: ignore[misc]
        if round_number < ROUNDS:
            await asyncio.sleep(rng.random() * 0.02)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)
    done.set()


async def campaign(server: ServerProcess, drivers: list[KafkaDriver], rng: random.Random) -> None:
    engines = [Engine(f"s{number}", driver, rng) for number, driver in enumerate(drivers)]
    for engine, driver in zip(engines, drivers, strict=True):
        await driver.create_topic(engine.topic, PARTITIONS)
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(engine.run(done))
        group.create_task(kill(server, engines, rng, done))
    for engine in engines:
        found = await asyncio.to_thread(committed, server, engine.topic, PARTITIONS)
        assert [sorted(each) for each in found] == [engine.wanted()] * PARTITIONS
    print(f"{ROUNDS} kills:", *(f"{each.acknowledged} batches in {each.attempts} attempts;" for each in engines))
    assert sum(each.replays for each in engines) > 0, "no kill was noticed"


def test_each_batch_counts_once_whenever_the_node_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**32)))
    print(f"KILL_SEED={seed}")

    async def test() -> None:
        with ServerProcess(tmp_path) as server:
            drivers = [driver_of(f"kafka://127.0.0.1:{server.ports['kafka']}") for _ in range(ENGINES)]
            try:
                async with asyncio.timeout(LIFE_SECONDS_MAX * (ROUNDS + 1)):
                    await campaign(server, drivers, random.Random(seed))
            finally:
                for driver in drivers:
                    driver.close()
                await asyncio.sleep(0)

    asyncio.run(test())
