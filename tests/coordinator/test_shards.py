"""Shards of the coordinators: where a name is, and what a node does when it begins, or ends, to lead one."""

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from tests.model.manual_world import ManualRuntime

from braidlog.client.drivers.kafka.staging import coordinator_name
from braidlog.codec.batch.records_section import Row
from braidlog.coordinator.journal import Journal
from braidlog.coordinator.shards import SHARDS, Shards, shard_for_name, shard_of
from braidlog.model.errors import BrokerError, NotCoordinatorError, Reason, StorageFault
from braidlog.model.stage_ids import stage_name
from braidlog.testing.clock import ManualClock

VECTORS = [
    ("123456789", 0xE3069283),
    ("\0" * 32, 0x8A9136AA),
    ("".join(map(chr, range(32))), 0x46DD794E),
    ("".join(map(chr, reversed(range(32)))), 0x113FDB5C),
]
"""Names and their CRC-32C. Source: the check value of the catalogue of CRC algorithms, and RFC 3720, appendix B.4."""


@pytest.mark.parametrize(("name", "crc"), VECTORS)
def test_a_names_shard_is_its_crc_32c(name: str, crc: int) -> None:
    assert shard_of(name) == crc % SHARDS


def test_a_name_is_hashed_as_utf_8() -> None:
    assert shard_of("ü") == crc_32c_bit_by_bit("ü".encode()) % SHARDS
    assert SHARDS == 16, "where everything is follows from it"


def crc_32c_bit_by_bit(data: bytes) -> int:
    """As RFC 3720 describes it, and not as the product computes it."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


class Log:
    """A `ShardLog` that a test commits."""

    def __init__(self, runtime: ManualRuntime, epoch: int, *, is_sole: bool = False) -> None:
        self.runtime = runtime
        self.epoch = epoch
        self.is_led, self.is_sole = True, is_sole
        self.end_offset = self.committed = 0
        self.refuses: BrokerError | None = None
        self.waiting: list[Any] = []

    def append(self, batch: bytes) -> int:
        assert batch
        if self.refuses is not None:
            raise self.refuses
        self.end_offset += 1
        return self.end_offset

    def is_durable(self, next_offset: int) -> bool:
        return self.committed >= next_offset

    async def durable(self, next_offset: int) -> None:
        while self.is_led and self.committed < next_offset:
            self.waiting.append(self.runtime.wakeup())
            await self.waiting[-1].wait(60)
        if not self.is_led:
            raise NotCoordinatorError(0, "led no more")

    def commit(self) -> None:
        self.committed = self.end_offset
        self.wake()

    def lose(self) -> None:
        self.is_led = False
        self.wake()

    def wake(self) -> None:
        for each in self.waiting:
            each.wake()
        self.runtime.settle()

    def rows(self) -> Iterator[Row]:
        return iter(())


class Node:
    """Reads each shard by one entry that says nothing."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime(ManualClock())
        self.discarded: list[str] = []
        self.fault: StorageFault | None = None
        self.shards: Shards[str] = Shards(self.load, self.discard, self.runtime, self.spawn)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        assert name
        self.runtime.spawn(work)

    async def load(self, number: int, log: Any) -> str:
        if self.fault is not None:
            raise self.fault
        journal = Journal(log, self.runtime)
        await journal.wait_committed(journal.write_start())
        return f"{number} in {log.epoch}"

    async def discard(self, content: str) -> None:
        self.discarded.append(content)

    def lead(self, epoch: int = 1) -> Log:
        log = Log(self.runtime, epoch)
        self.shards.lead(3, log)
        self.runtime.settle()
        return log

    def reason(self) -> Reason:
        with pytest.raises(BrokerError, match="coordinator shard 3") as caught:
            self.shards.shard(3)
        return caught.value.reason


def test_a_shard_is_served_once_all_of_it_is_settled_in_the_leaders_own_epoch() -> None:
    node = Node()
    assert node.reason() is Reason.NOT_COORDINATOR
    log = node.lead()
    assert node.reason() is Reason.COORDINATOR_LOADING
    assert list(node.shards.served()) == []
    with pytest.raises(NotCoordinatorError):
        node.shards.all_led()
    log.commit()
    assert node.shards.shard(3) == "3 in 1"
    assert list(node.shards.served()) == node.shards.all_led() == ["3 in 1"]
    log.is_led = False
    assert node.shards.all_led() == []


def test_a_shard_that_is_led_no_more_is_refused_before_anyone_was_told() -> None:
    node = Node()
    log = node.lead()
    log.commit()
    log.is_led = False
    assert node.reason() is Reason.NOT_COORDINATOR
    assert list(node.shards.served()) == []
    node.shards.unload(3)
    node.runtime.settle()
    assert node.discarded == ["3 in 1"]


def test_a_shard_that_is_lost_while_it_is_read_is_never_served() -> None:
    node = Node()
    log = node.lead()
    node.shards.unload(3)
    log.lose()
    assert node.reason() is Reason.NOT_COORDINATOR
    again = node.lead(epoch=3)
    again.commit()
    assert node.shards.shard(3) == "3 in 3"


def test_what_was_read_in_an_earlier_epoch_is_thrown_away() -> None:
    node = Node()
    node.lead(epoch=1).commit()
    later = node.lead(epoch=2)
    assert node.reason() is Reason.COORDINATOR_LOADING
    later.commit()
    assert node.shards.shard(3) == "3 in 2"
    assert node.discarded == ["3 in 1"]


def test_a_shard_is_read_again_until_enough_replicas_are_there(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = Node()
    log = Log(node.runtime, 1)
    log.refuses = BrokerError(Reason.UNAVAILABLE, "too few")
    node.shards.lead(3, log)
    node.runtime.settle()
    node.runtime.advance(60_000)
    assert node.reason() is Reason.COORDINATOR_LOADING
    assert caplog.text.count("is not loaded yet: too few") == 1, "it may be so for hours"
    log.refuses = None
    node.runtime.advance(100)
    log.commit()
    assert node.shards.shard(3) == "3 in 1"


def test_a_damaged_shard_is_not_served_and_others_are() -> None:
    node = Node()
    node.fault = StorageFault("it does not decode")
    node.lead()
    assert node.reason() is Reason.UNAVAILABLE
    node.fault = None
    node.shards.lead(4, log := Log(node.runtime, 1))
    node.runtime.settle()
    log.commit()
    assert node.shards.shard(4) == "4 in 1"


def test_stages_are_where_their_sink_is_and_so_is_whom_its_driver_asks() -> None:
    """Else a batch would be decided by two entries."""
    for sink in ("orders", "a/b", "s"):
        stages = {shard_for_name(stage_name(sink, batch, f"{task}-0")) for batch in (0, 7) for task in range(20)}
        assert stages == {shard_for_name(sink), shard_for_name(coordinator_name(sink))} == {shard_of(sink)}
    assert len({shard_for_name(f"t{number}") for number in range(200)}) == SHARDS


@pytest.mark.parametrize("is_sole", [True, False])
def test_a_request_waits_for_a_shard_that_no_other_node_could_read(is_sole: bool) -> None:
    node = Node()
    log = Log(node.runtime, 1, is_sole=is_sole)
    log.end_offset = 1
    node.shards.lead(3, log)
    waiting = node.runtime.spawn(node.shards.wait_read(3))
    node.runtime.settle()
    assert waiting.is_done != is_sole
    log.commit()
    waiting.result()
    assert node.shards.shard(3) == "3 in 1"
