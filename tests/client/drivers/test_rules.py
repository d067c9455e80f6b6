"""Each protocol's own rules for leaders, generations and reconnection, against peers that speak its bytes by script.

The bytes are those of the vectors under tests/wire: lines and frames as the documents print them.
"""

import asyncio
from typing import Any

import pytest
from tests.client.dialects import run, until
from tests.client.peer import Peer, cursus_frame, cut_cursus, cut_line, cut_mlog, mlog_frame, script

from braidlog import aio
from braidlog.client.engine.delivery import Retries
from braidlog.client.errors import ClientError, NoAnswerError, Refusal, RefusedError, UnknownOutcomeError
from braidlog.testing.server import ServerProcess

QUICK: dict[str, Any] = {"retry_timeout": 20, "backoff_min": 0.001, "backoff_max": 0.01}
ACK = cursus_frame(
    '{"status":"OK","last_offset":41,"producer_epoch":0,"producer_id":"p","seq_start":1,"seq_end":1,"leader":"","error":""}'
)
METADATA = (b"METADATA", cursus_frame("OK topic=t partitions=1 leaders=h1:9000 epochs=1"))
BATCH = b"\xba\x7c"
# BA7C | u16 n, topic | i32 partition | u8 n, acks | u8 idempotent | u64 first | u64 last | i32 count
NOTHING = cursus_frame(
    BATCH + b"\x00\x01t" + b"\x00\x00\x00\x00" + b"\x011" + b"\x00" + bytes(16) + b"\x00\x00\x00\x00"
)


def records(first: int, count: int) -> bytes:
    """A Cursus batch: i64 offset | i64 sequence | u16, producer | u16, key | i64 epoch | i32, payload | tail."""
    head = BATCH + b"\x00\x01t" + b"\x00\x00\x00\x00" + b"\x011" + b"\x00" + bytes(16) + count.to_bytes(4, "big")
    one = b"".join(
        at.to_bytes(8, "big") + bytes(8) + bytes(2) + bytes(2) + bytes(8) + b"\x00\x00\x00\x01v" + bytes(16)
        for at in range(first, first + count)
    )
    return cursus_frame(head + one)


def url(scheme: str, *peers: Peer) -> str:
    return f"{scheme}://{','.join(f'127.0.0.1:{peer.port}' for peer in peers)}"


# -- cursus: leaders -----------------------------------------------------------------------------------------------


async def test_cursus_not_leader_names_the_leader() -> None:
    async with Peer(cut_cursus, script((BATCH, ACK))) as leader:
        refusal = cursus_frame(f"ERROR: NOT_LEADER LEADER_IS 127.0.0.1:{leader.port}")
        async with (
            Peer(cut_cursus, script(METADATA, (BATCH, refusal))) as follower,
            aio.connect(url("cursus", follower), **QUICK) as client,
        ):
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
            assert len(follower.heard(BATCH)) == 1
            assert leader.said == follower.heard(BATCH)  # the very same batch


async def test_cursus_goes_to_the_leaders_of_several_nodes_by_itself() -> None:
    """Any of them would forward. METADATA names them, and an acknowledgement the leader of now."""
    async with Peer(cut_cursus, script((BATCH, ACK))) as next_leader:
        moved = ACK[4:].replace(b'"leader":""', b'"leader":"127.0.0.1:%d"' % next_leader.port)
        async with Peer(cut_cursus, script((BATCH, cursus_frame(moved)))) as leader:
            told = f"OK topic=t partitions=2 leaders=h1:9000,127.0.0.1:{leader.port} epochs=1,1"
            async with (
                Peer(cut_cursus, script((b"METADATA", cursus_frame(told)))) as home,
                aio.connect(url("cursus", home), **QUICK) as client,
            ):
                producer = client.producer()
                for _ in range(2):
                    assert (await producer.send_and_wait("t", b"v", partition=1)).offset == 41
                assert (len(home.heard(BATCH)), len(leader.said), len(next_leader.said)) == (0, 1, 1)


async def test_cursus_sequences_begin_at_1_in_header_and_records_alike() -> None:
    async with Peer(cut_cursus, script(METADATA, (BATCH, ACK))) as peer, aio.connect(url("cursus", peer)) as client:
        producer = client.producer()
        await producer.send_many("t", [b"v", b"w"])
        await producer.flush()
        await producer.send_and_wait("t", b"x")
        # BA7C | 0001 t | i32 partition | 02 "-1" | u8 idempotent | u64 first | u64 last | i32 count | i64 offset | i64 number
        heads = [frame[9:33] + frame[41:49] for frame in peer.heard(BATCH)]
        assert heads == [
            b"\x02-1\x01" + _u64(1) + _u64(2) + b"\x00\x00\x00\x02" + _u64(1),
            b"\x02-1\x01" + _u64(3) + _u64(3) + b"\x00\x00\x00\x01" + _u64(3),
        ]


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def test_cursus_not_leader_without_a_name_asks_the_metadata() -> None:
    async with Peer(cut_cursus, script((BATCH, ACK))) as leader:
        told = cursus_frame(f"OK topic=t partitions=1 leaders=127.0.0.1:{leader.port} epochs=2")
        refusal = cursus_frame("ERROR: NOT_LEADER")
        async with (
            Peer(cut_cursus, script((b"METADATA", told), (BATCH, refusal))) as follower,
            aio.connect(url("cursus", follower), **QUICK) as client,
        ):
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
            assert len(follower.heard(b"METADATA")) == 2  # how many partitions; then who leads
            assert len(leader.said) == 1


async def test_cursus_a_leader_that_is_gone_is_looked_for_at_home() -> None:
    refusals = [cursus_frame("ERROR: NOT_LEADER LEADER_IS 127.0.0.1:1"), ACK]
    async with (
        Peer(cut_cursus, script(METADATA, (BATCH, list(refusals)))) as peer,
        aio.connect(url("cursus", peer), **QUICK) as client,
    ):
        assert (await client.producer().send_and_wait("t", b"v")).offset == 41


async def test_cursus_a_leader_that_does_not_know_a_new_topic_yet_is_asked_again() -> None:
    absent = cursus_frame("ERROR: topic_not_found topic=t")
    async with Peer(cut_cursus, script((BATCH, [absent, absent, ACK]))) as leader:
        told = cursus_frame(f"OK topic=t partitions=1 leaders=127.0.0.1:{leader.port} epochs=2")
        refusal = cursus_frame(f"ERROR: NOT_LEADER LEADER_IS 127.0.0.1:{leader.port}")
        async with (
            Peer(cut_cursus, script((b"METADATA", told), (BATCH, refusal))) as follower,
            aio.connect(url("cursus", follower), **QUICK) as client,
        ):
            assert (await client.producer().send_and_wait("t", b"v")).offset == 41
            assert len(leader.said) == 3
            assert len(follower.heard(b"METADATA")) == 3  # how many partitions; then who leads, twice


async def test_cursus_a_topic_that_is_gone_from_everywhere_is_not_there() -> None:
    absent = cursus_frame("ERROR: topic_not_found topic=t")
    async with Peer(cut_cursus, script((BATCH, absent))) as leader:
        refusal = cursus_frame(f"ERROR: NOT_LEADER LEADER_IS 127.0.0.1:{leader.port}")
        steps = script((b"METADATA", [METADATA[1], absent]), (BATCH, refusal))
        async with Peer(cut_cursus, steps) as follower, aio.connect(url("cursus", follower), **QUICK) as client:
            with pytest.raises(RefusedError) as caught:
                await client.producer(acks="leader").send_and_wait("t", b"v")
            assert caught.value.reason is Refusal.TOPIC_NOT_FOUND
            assert len(leader.said) == 1


async def test_cursus_not_coordinator_names_the_coordinator() -> None:
    at_home = script(
        (b"JOIN_GROUP", cursus_frame("OK generation=1 member=m assignments=[]")),
        (b"HEARTBEAT", cursus_frame("OK member=m generation=1")),
        (b"LEAVE_GROUP", cursus_frame("OK group=g member=m left=true")),
    )
    async with Peer(cut_cursus, at_home) as coordinator:
        refusal = cursus_frame(f"ERROR: NOT_COORDINATOR host=127.0.0.1 port={coordinator.port}")
        async with Peer(cut_cursus, script((b"JOIN_GROUP", refusal))) as other:
            async with aio.connect(url("cursus", other), **QUICK) as client:
                await client.consumer().subscribe("t", group="g", member="m")
                assert len(other.said) == len(coordinator.said) == 1
            assert coordinator.heard(b"LEAVE_GROUP")


async def test_cursus_a_fenced_producer_is_told_and_its_successor_has_a_new_name() -> None:
    fenced = cursus_frame(
        '{"status":"ERROR","last_offset":-1,"producer_epoch":0,"producer_id":"p","seq_start":1,"seq_end":1,'
        '"leader":"","error":"idempotency_gap reason=\\"sequence 3 is next\\""}'
    )
    async with (
        Peer(cut_cursus, script(METADATA, (BATCH, [fenced, ACK]))) as peer,
        aio.connect(url("cursus", peer), **QUICK) as client,
    ):
        producer = client.producer()
        with pytest.raises(RefusedError, match="idempotency_gap") as caught:
            await producer.send_and_wait("t", b"v")
        assert caught.value.reason is Refusal.FENCED
        assert (await producer.send_and_wait("t", b"v")).offset == 41
        first, second = [frame[frame.index(b"braidlog-") :][:41] for frame in peer.heard(BATCH)]
        assert first != second


# -- cursus: generations -------------------------------------------------------------------------------------------


def group_peer(*heartbeats: str, generations: tuple[int, ...], **more: Any) -> Peer:
    """A group of one partition, whose member is told `heartbeats`, then well; and joins into `generations`."""
    steps: dict[bytes, Any] = {
        b"JOIN_GROUP": [cursus_frame(f"OK generation={n} member=m assignments=[0]") for n in generations],
        b"HEARTBEAT": [*map(cursus_frame, heartbeats), cursus_frame("OK member=m generation=9")],
        b"FETCH_OFFSET": [cursus_frame("OK offset=5"), cursus_frame("OK offset=50")],
        b"CONSUME topic=t partition=0 offset=5 ": [records(5, 3), NOTHING],
        b"CONSUME": NOTHING,
        b"LEAVE_GROUP": cursus_frame("OK group=g member=m left=true"),
    }
    # The first step that matches answers: the more particular ones come first.
    particular = {name.encode(): said for name, said in more.items()}
    return Peer(
        cut_cursus, script(*({**particular, **{k: v for k, v in steps.items() if k not in particular}}).items())
    )


@pytest.mark.parametrize(
    "told",
    [
        "ERROR: REBALANCE_REQUIRED",
        "ERROR: GEN_MISMATCH current=2 requested=1 group=g member=m",
        "ERROR: member_not_found member=m",
        "ERROR: group_not_found group=g",
        "ERROR: NOT_OWNER",
    ],
)
async def test_cursus_joins_again_and_keeps_its_place_if_nobody_was_in_between(told: str) -> None:
    async with group_peer(told, generations=(1, 2)) as peer, aio.connect(url("cursus", peer), **QUICK) as client:
        consumer = client.consumer(heartbeat_seconds=0.02, wait_ms=10)
        await consumer.subscribe("t", group="g", member="m")
        assert [each.offset for each in await consumer.poll(max_records=2, timeout=30)] == [5, 6]
        await until(lambda: len(peer.heard(b"JOIN_GROUP")) == 2, "joins again")
        await until(lambda: any(b"generation=2" in frame for frame in peer.heard(b"CONSUME")), "reads as a new member")
        assert [each.offset for each in await consumer.poll(timeout=30)] == [7]
        assert len(peer.heard(b"FETCH_OFFSET")) == 1


async def test_cursus_after_a_generation_it_did_not_see_a_member_begins_where_the_group_is() -> None:
    """Somebody else may have had the partition meanwhile, and read on to 50: what was fetched ahead is dropped."""
    peer = group_peer(
        "ERROR: GEN_MISMATCH current=3 requested=1 group=g member=m",
        generations=(1, 3),
        **{"CONSUME topic=t partition=0 offset=50 ": [records(50, 1), NOTHING]},
    )
    steps: list[tuple[frozenset[Any], frozenset[Any]]] = []
    async with peer, aio.connect(url("cursus", peer), **QUICK) as client:
        consumer = client.consumer(heartbeat_seconds=0.02, wait_ms=10)
        await consumer.subscribe(
            "t", group="g", member="m", on_rebalance=lambda lost, gained: steps.append((lost, gained))
        )
        assert [each.offset for each in await consumer.poll(max_records=2, timeout=30)] == [5, 6]
        await until(lambda: len(steps) == 2, "the rebalance")
        assert [each.offset for each in await consumer.poll(timeout=30)] == [50]
        mine = frozenset({("t", 0)})
        assert steps == [(frozenset(), mine), (mine, mine)]


async def test_cursus_a_commit_of_an_old_generation_is_refused_and_told() -> None:
    refusal = cursus_frame("ERROR: GEN_MISMATCH current=2 requested=1 group=g member=m")
    peer = group_peer(generations=(1, 2), BATCH_COMMIT=[refusal, cursus_frame("OK batched=1")])
    async with peer, aio.connect(url("cursus", peer), **QUICK) as client:
        consumer = client.consumer(heartbeat_seconds=60, wait_ms=10)
        await consumer.subscribe("t", group="g", member="m")
        await consumer.poll(max_records=2, timeout=30)
        with pytest.raises(RefusedError, match="GEN_MISMATCH") as caught:
            await consumer.commit()
        assert caught.value.reason is Refusal.REJOIN
        await until(lambda: consumer.membership is not None and consumer.membership.generation == 2, "joined again")
        await consumer.commit()
        first, second = peer.heard(b"BATCH_COMMIT")
        assert b"generation=1 P0:7" in first.replace(b"offsets=", b"")
        assert b"generation=2 P0:7" in second.replace(b"offsets=", b"")


async def test_cursus_a_read_that_is_refused_makes_the_member_join_again() -> None:
    refusal = cursus_frame("ERROR: NOT_OWNER")
    peer = group_peer(
        generations=(1, 2), **{"CONSUME topic=t partition=0 offset=5 ": [refusal, records(5, 1), NOTHING]}
    )
    async with peer, aio.connect(url("cursus", peer), **QUICK) as client:
        consumer = client.consumer(heartbeat_seconds=60, wait_ms=10)
        await consumer.subscribe("t", group="g", member="m")
        assert [each.offset for each in await consumer.poll(timeout=30)] == [5]
        assert len(peer.heard(b"JOIN_GROUP")) == 2


# -- mlog: ShouldReconnect -----------------------------------------------------------------------------------------

PRODUCE, FIND, FIND_RAFT, LIST = b"\x04", b"\x15", b"\x17", b"\x19"
LISTED = mlog_frame(26, '{"Topics":[{"Name":"t","LeaderNodeID":"n1","LeaderEpoch":1,"Replicas":null}]}')
PRODUCED = mlog_frame(5, '{"BaseOffset":7,"LastOffset":7,"Count":1}')


def rpc_error(code: int) -> bytes:
    return mlog_frame(20, f'{{"code":{code},"message":"as told"}}')


@pytest.mark.parametrize("code", [3, 4, 11])
async def test_mlog_looks_for_the_leader_again(code: int) -> None:
    async with Peer(cut_mlog, script((PRODUCE, PRODUCED))) as leader:
        found = mlog_frame(22, f'{{"LeaderAddr":"127.0.0.1:{leader.port}"}}')
        steps = script((LIST, LISTED), (PRODUCE, rpc_error(code)), (FIND, found))
        async with Peer(cut_mlog, steps) as follower, aio.connect(url("mlog", follower), **QUICK) as client:
            assert (await client.producer().send_and_wait("t", b"v")).offset == 7
            assert (len(follower.heard(PRODUCE)), len(follower.heard(FIND))) == (1, 1)
            assert (await client.producer().send_and_wait("t", b"v")).offset == 7
            assert (len(follower.heard(PRODUCE)), len(leader.said)) == (1, 2)  # it is remembered


async def test_mlog_asks_the_node_that_topics_are_created_on_for_the_leader_of_a_new_one() -> None:
    """The first node of the URL has not heard of it yet."""
    async with Peer(cut_mlog, script((PRODUCE, [rpc_error(3), PRODUCED]))) as leader:
        found = mlog_frame(22, f'{{"LeaderAddr":"127.0.0.1:{leader.port}"}}')
        async with Peer(cut_mlog, script((LIST, LISTED), (FIND, found))) as controller:
            raft = mlog_frame(24, f'{{"RaftLeaderAddr":"127.0.0.1:{controller.port}"}}')
            steps = script((LIST, rpc_error(11)), (FIND_RAFT, raft), (PRODUCE, rpc_error(3)), (FIND, rpc_error(3)))
            async with Peer(cut_mlog, steps) as home, aio.connect(url("mlog", home), **QUICK) as client:
                assert (await client.producer().send_and_wait("t", b"v")).offset == 7
                assert (len(home.heard(FIND)), len(controller.heard(FIND)), len(leader.said)) == (0, 2, 2)


async def test_mlog_looks_for_the_leader_again_at_the_end_of_the_stream() -> None:
    async with Peer(cut_mlog, script((PRODUCE, PRODUCED))) as leader:
        found = mlog_frame(22, f'{{"LeaderAddr":"127.0.0.1:{leader.port}"}}')
        steps = script((LIST, LISTED), (PRODUCE, [None]), (FIND, found))
        async with Peer(cut_mlog, steps) as dying, aio.connect(url("mlog", dying), **QUICK) as client:
            producer = client.producer()
            with pytest.raises(UnknownOutcomeError) as caught:
                await producer.send_and_wait("t", b"v")  # it was sent, and nobody knows
            assert isinstance(caught.value.__cause__, NoAnswerError)
            assert (await producer.send_and_wait("t", b"w")).offset == 7
            assert len(dying.heard(FIND)) == len(leader.said) == 1


@pytest.mark.parametrize("code", [0, 5, 14, 15, 16, -99])
async def test_mlog_does_not_look_again_for_other_codes(code: int) -> None:
    steps = script((LIST, LISTED), (PRODUCE, rpc_error(code)))
    async with Peer(cut_mlog, steps) as peer, aio.connect(url("mlog", peer), **QUICK) as client:
        maybe_stored = code in (0, 14, 16, -99)
        with pytest.raises(UnknownOutcomeError if maybe_stored else RefusedError):
            await client.producer().send_and_wait("t", b"v")
        assert len(peer.heard(PRODUCE)) == 1
        assert not peer.heard(FIND)


async def test_mlog_a_topic_that_nobody_leads_is_not_there() -> None:
    steps = script((LIST, LISTED), (PRODUCE, rpc_error(3)), (FIND, rpc_error(3)))
    async with Peer(cut_mlog, steps) as peer, aio.connect(url("mlog", peer), **QUICK) as client:
        with pytest.raises(RefusedError) as caught:
            await client.producer().send_and_wait("t", b"v")
        assert caught.value.reason is Refusal.TOPIC_NOT_FOUND
        assert len(peer.heard(FIND)) == 1


# -- flux ----------------------------------------------------------------------------------------------------------


# -- rustlog: 500 ---------------------------------------------------------------------------------------------------


def test_rustlog_what_may_be_done_is_asked_again_by_who_chose_at_least_once() -> None:
    """Others are told that nobody knows; a 500 that does not say that it was late is no reason to ask again."""
    described = (
        '{"type":"DescribeTopicResponse","topic":"t","partitions":[{"partition":0,"high_watermark":0,'
        '"log_start_offset":0,"segment_count":1}]}'
    )
    late = '{"type":"Error","code":500,"message":"late","details":{"outcome":"unknown"}}'
    broken = '{"type":"Error","code":500,"message":"broken","details":null}'
    done = '{"type":"ProduceResponse","base_offset":7,"record_count":1}'

    async def sent(first: str, retries: str) -> tuple[int, int]:
        steps = script(
            (b'{"type":"DescribeTopic"', cursus_frame(described)),
            (b'{"type":"Produce"', [cursus_frame(first), cursus_frame(done)]),
        )
        async with Peer(cut_cursus, steps) as peer, aio.connect(url("rustlog", peer), **QUICK) as client:
            try:
                offset = (await client.producer(retries=Retries(retries)).send_and_wait("t", b"v")).offset
            except UnknownOutcomeError:
                offset = -1
            return offset, len(peer.heard(b'{"type":"Produce"'))

    async def test() -> None:
        assert await sent(late, "at-least-once") == (7, 2)
        assert await sent(late, "safe") == (-1, 1)
        assert await sent(broken, "at-least-once") == (-1, 1)

    run(test)


async def test_flux_not_leader_asks_the_next_node() -> None:
    stored = iter(range(1, 100))

    def store(line: bytes) -> bytes:
        return b"V1|%b|OK|partition=1 offset=%d hw=9\n" % (line.split(b"|")[1], next(stored))

    def refuse(line: bytes) -> bytes:
        return b"V1|%b|ERR|NOT_LEADER|partition 1 is led elsewhere\n" % line.split(b"|")[1]

    async with (
        Peer(cut_line, refuse) as follower,
        Peer(cut_line, store) as leader,
        aio.connect(url("flux", follower, leader), **QUICK) as client,
    ):
        placed = await client.producer().send_and_wait("t", b"v", key=b"k")
        assert (placed.partition, placed.offset) == (1, 1)
        assert leader.said[0].endswith(b"PRODUCE|t aw==:dg== enc=b64")


async def test_flux_goes_to_the_leader_that_a_refusal_names() -> None:
    """Although the URL does not."""

    def store(line: bytes) -> bytes:
        return b"V1|%b|OK|partition=1 offset=7 hw=9\n" % line.split(b"|")[1]

    async with Peer(cut_line, store) as leader:

        def refuse(line: bytes) -> bytes:
            words = b"this node follows t/1; leader=127.0.0.1:%d" % leader.port
            return b"V1|%b|ERR|NOT_LEADER|%b\n" % (line.split(b"|")[1], words)

        async with (
            Peer(cut_line, refuse) as follower,
            aio.connect(url("flux", follower), **QUICK) as client,
        ):
            assert (await client.producer().send_and_wait("t", b"v", key=b"k")).offset == 7


async def test_flux_answers_in_any_order() -> None:
    held: list[bytes] = []

    def late(line: bytes) -> bytes:
        held.append(line.split(b"|")[1])
        if len(held) < 3:
            return b""
        return b"".join(b"V1|%b|OK|partition=0 offset=%b hw=9\n" % (each, each) for each in reversed(held))

    async with Peer(cut_line, late) as peer, aio.connect(url("flux", peer), **QUICK) as client:
        producer = client.producer()
        sent = [await producer.send("t", b"%d" % at) for at in range(3)]
        assert [(await delivery).offset for delivery in sent] == [1, 2, 3]


# -- any dialect ---------------------------------------------------------------------------------------------------


async def test_no_answer_in_time_is_an_unknown_outcome() -> None:
    steps = script((LIST, LISTED), (PRODUCE, b""))
    async with Peer(cut_mlog, steps) as peer, aio.connect(url("mlog", peer), request_timeout=0.05) as client:
        with pytest.raises(UnknownOutcomeError, match=r"no answer in 0\.05 s"):
            await client.producer().send_and_wait("t", b"v")


@pytest.mark.parametrize("scheme", ["mlog", "flux", "cursus", "rustlog"])
async def test_a_peer_of_another_protocol_is_told_apart(scheme: str) -> None:
    http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"

    def cut(data: bytearray) -> bytes | None:
        frame = bytes(data)
        data.clear()
        return frame or None

    async with Peer(cut, lambda _: http) as peer, aio.connect(url(scheme, peer), retry_timeout=0.05) as client:
        with pytest.raises(NoAnswerError, match="does not speak the dialect"):
            await client.admin.list_topics()


async def test_the_next_node_of_the_url_is_tried(braid_server_shared: ServerProcess) -> None:
    port = braid_server_shared.ports["rustlog"]
    async with aio.connect(f"rustlog://127.0.0.1:1,127.0.0.1:{port}", **QUICK) as client:
        assert isinstance(await client.admin.list_topics(), list)


async def test_what_a_server_says_before_it_closes_is_passed_on() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(rpc_error(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with aio.connect(f"mlog://127.0.0.1:{port}", retry_timeout=0.05) as client:
        with pytest.raises(ClientError, match=r"as told|closed the connection"):
            await client.admin.list_topics()
    server.close()
