"""Questions and answers of replication over real sockets: what is said arrives as it was said, or not at all."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.partition.test_replica_runner import FOLDER, Node
from tests.partition.test_replica_runner import batch as appended
from tests.server.peers.station import PLACE, Addresses, Station, batch, fetched, play, question, until

from braidlog.adapters.peers import handlers
from braidlog.adapters.peers.replica_messages import CODES, Place
from braidlog.model.clock import SystemClock
from braidlog.replication.messages import (
    Complaint,
    CorruptAnswer,
    Diverging,
    Fetch,
    Fetched,
    Message,
    Refusal,
    Refused,
    ResetLog,
    Tick,
)
from braidlog.replication.ready import Done
from braidlog.server.peers import replica_fetcher
from braidlog.server.peers.certificate_authority import make_authority, make_node_certificate
from braidlog.server.peers.certificates import PeerTls, peer_tls

ASKED = question(9)
ANSWERS = [
    fetched(ASKED),
    fetched(ASKED, batch(9, b"one", b"two"), batch(11, b"three", epoch=4)),
    fetched(ASKED, batch(9, bytes(3_000_000)), batch(10, bytes(200_000))),
    Diverging(ASKED, 2, 5),
    Diverging(ASKED, -1, 0),
    ResetLog(ASKED, 100),
    *(Refused(ASKED, refusal, 8) for refusal in Refusal),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
@play
async def test_a_question_and_its_answer_arrive_as_they_were_said(answer: Any) -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        leader.answer = lambda node, place, _: leader.peers.send(node, place, answer)
        follower.peers.send(1, PLACE, ASKED)
        await until(lambda: follower.heard)
        assert leader.heard == [(2, PLACE, ASKED)]
        assert follower.heard == [(1, PLACE, answer)]


def test_every_refusal_has_a_code_of_its_own() -> None:
    assert set(CODES) == set(Refusal)
    assert len(set(CODES.values())) == len(CODES)


@play
async def test_a_complaint_arrives_with_or_without_a_question() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        follower.peers.send(1, PLACE, Complaint(2, 3, 17))
        await until(lambda: leader.heard)
        follower.peers.send(1, PLACE, Complaint(2, 3, 18))
        follower.peers.send(1, PLACE, ASKED)
        await until(lambda: len(leader.heard) == 3)
        assert leader.messages == [Complaint(2, 3, 17), Complaint(2, 3, 18), ASKED]


def has_heard(station: Station, count: int) -> bool:
    return len(station.heard) == count


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes, comes because somebody has said something: nobody's time runs out."""
    monkeypatch.setattr(handlers, "WAIT_SECONDS_MAX", 1000.0)
    monkeypatch.setattr(replica_fetcher, "WAIT_MS", 1_000_000)
    monkeypatch.setattr(replica_fetcher, "REPEAT_SECONDS", 1000.0)
    monkeypatch.setattr(replica_fetcher, "ANSWER_SECONDS_MAX", 1000.0)


@pytest.mark.usefixtures("patient")
@play
async def test_a_new_question_does_not_wait_behind_one_that_stands() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        places = [(PLACE[0], number) for number in range(3)]
        for number, place in enumerate(places, 1):
            follower.peers.send(1, place, question(number))
            await until(partial(has_heard, leader, number))
        for place, number in ((places[1], 2), (places[0], 1), (places[2], 3)):
            heard = len(follower.heard)
            leader.peers.send(2, place, fetched(question(number)))
            await until(partial(has_heard, follower, heard + 1))
            assert follower.heard[-1] == (1, place, fetched(question(number)))


@pytest.mark.usefixtures("patient")
@play
async def test_a_request_that_comes_while_many_questions_are_handed_on_ends_their_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers go in the order of requests: one that waits on would hold all answers back."""
    monkeypatch.setattr(handlers, "QUESTIONS_AT_ONCE", 1)
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        places = [(PLACE[0], number) for number in range(301)]

        def ask_more(_: int, place: Place, __: object) -> None:
            if place == places[0]:
                follower.peers.send(1, places[-1], question(9))

        leader.answer = ask_more
        for place in places[:-1]:
            follower.peers.send(1, place, question(9))
        await until(lambda: len(leader.heard) == len(places))
        leader.peers.send(2, places[5], fetched(question(9)))
        await until(lambda: follower.heard)
        assert follower.heard == [(1, places[5], fetched(question(9)))]


@pytest.mark.usefixtures("patient")
@play
async def test_questions_that_stand_cost_nothing_however_often_they_are_asked() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        places = [(bytes([topic]) * 16, number) for topic in range(10) for number in range(30)]
        for _ in range(5):
            for place in places:
                follower.peers.send(1, place, question(1))
            await until(lambda: len(leader.heard) == 300)
        assert [place for _, place, _ in leader.heard] == places
        assert follower.peers.fetcher(1).requests == 1
        leader.peers.send(2, places[17], fetched(question(1)))
        await until(lambda: follower.heard)
        follower.peers.send(1, places[17], question(2))
        await until(lambda: len(leader.heard) == 301)
        assert leader.heard[-1] == (2, places[17], question(2))


@pytest.mark.usefixtures("patient")
@play
async def test_an_answer_to_another_question_than_the_one_that_stands_is_lost() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        follower.peers.send(1, PLACE, question(1))
        await until(lambda: len(leader.heard) == 1)
        follower.peers.send(1, PLACE, question(2))
        leader.peers.send(2, PLACE, ResetLog(question(1), 5))  # they cross on their way
        await until(lambda: len(leader.heard) == 2)
        leader.peers.send(2, PLACE, fetched(question(1)))
        leader.peers.send(2, (PLACE[0], 9), fetched(question(1)))
        leader.peers.send(9, PLACE, fetched(question(1)))
        leader.peers.send(2, PLACE, fetched(question(2)))
        await until(lambda: follower.heard)
        assert follower.messages == [fetched(question(2))]


@play
async def test_records_with_a_wrong_checksum_are_told_as_such() -> None:
    addresses: Addresses = {}
    good = batch(9, b"value")
    assert isinstance(good.records, bytes)
    bad = batch(9, b"value")
    data = good.records[:-2] + b"?" + good.records[-1:]
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        wrong = fetched(ASKED, type(bad)(9, 10, 3, data))
        leader.answer = lambda node, place, asked: leader.peers.send(node, place, wrong)
        follower.peers.send(1, PLACE, ASKED)
        await until(lambda: follower.heard)
        assert follower.messages == [CorruptAnswer(ASKED)]


@pytest.mark.usefixtures("patient")
@play
async def test_what_a_broken_connection_had_under_way_is_lost_and_the_next_question_connects_again() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        follower.peers.send(1, PLACE, question(1))
        await until(lambda: leader.heard)
        assert leader.listener is not None
        port = leader.listener.port
        await leader.listener.stop(0)
        leader.peers.send(2, PLACE, fetched(question(1)))
        await leader.listen(port)

        def asked_again() -> bool:
            follower.peers.send(1, PLACE, question(1))
            return len(leader.heard) > 1

        await until(asked_again)
        assert leader.messages == [question(1), question(1)]
        leader.peers.send(2, PLACE, fetched(question(1)))
        await until(lambda: follower.heard)
        assert follower.messages == [fetched(question(1))]


@play
async def test_a_leader_that_is_nowhere_is_left_alone_and_nothing_is_kept_for_it() -> None:
    addresses: Addresses = {}
    async with Station(2, addresses) as follower:
        fetch = follower.peers.fetcher(1)
        follower.peers.send(1, PLACE, question(1))
        await until(lambda: not fetch._unsent and not fetch._is_connecting)
        assert not fetch._standing


@pytest.mark.usefixtures("patient")
@play
async def test_a_connection_that_ends_before_it_is_used_is_none() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        fetch = follower.peers.fetcher(1)
        dial, connect = fetch._dial, fetch._dial.connect

        async def connect_in_vain(protocol: Any) -> Any:
            dial.connect = connect  # type: ignore[method-assign]  # the next one is a good one
            return protocol()

        dial.connect = connect_in_vain  # type: ignore[method-assign]

        def is_asked() -> bool:
            follower.peers.send(1, PLACE, ASKED)
            return bool(leader.heard)

        await until(is_asked)


@pytest.mark.usefixtures("patient")
@play
async def test_a_follower_that_has_nothing_does_not_make_its_leader_read_everything() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        most = 0
        waiting = 0

        def answer(node: int, place: Any, asked: Any) -> None:
            nonlocal most, waiting
            waiting += 1
            most = max(most, waiting - len(follower.heard))
            leader.peers.send(node, place, fetched(asked, batch(1, bytes(1_000_000))))

        leader.answer = answer
        for number in range(24):
            follower.peers.send(1, (PLACE[0], number), question(1))
        await until(lambda: len(follower.heard) == 24)
        assert most <= 10, "two responses of 5 MB"


@play
async def test_nobody_speaks_for_another_number_than_a_followers() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(1, addresses) as other:
        addresses[1] = "127.0.0.1", leader.listener.port if leader.listener else 0
        other.peers.send(1, PLACE, question(1, node=1))
        await until(lambda: leader.listener is not None and leader.listener.accepted and not leader.listener.sessions)
        assert not leader.heard


def station(addresses: Addresses, node: int, tls: PeerTls) -> Station:
    return Station(node, addresses, server_tls=tls.server, client_tls=tls.client)


@play
async def test_a_certificate_says_which_node_asks(tmp_path: Path) -> None:
    addresses: Addresses = {}
    clock = SystemClock()
    authority = make_authority(tmp_path, clock)
    one, two, three = (
        peer_tls(str(authority.certificate), str(pair.certificate), str(pair.key))
        for pair in (make_node_certificate(authority, tmp_path, node, clock) for node in (1, 2, 3))
    )
    async with station(addresses, 1, one) as leader, station(addresses, 2, two) as follower:
        leader.answer = lambda node, place, asked: leader.peers.send(node, place, fetched(asked))
        follower.peers.send(1, PLACE, ASKED)
        await until(lambda: follower.heard)
        async with station(dict(addresses), 2, three) as liar:
            liar.peers._address_of = addresses.get
            liar.peers.send(1, PLACE, question(77))
            await until(lambda: liar.peers.fetcher(1).requests and liar.peers.fetcher(1)._link is None)
        assert leader.messages == [ASKED]


# ── A replica on each side ────────────────────────────────────────────────────────────────────────────────────────────────────


class Wired(Node):
    """A replica whose messages leave over the socket, and whose disk works at once."""

    def __init__(self, station: Station) -> None:
        self.station = station
        super().__init__(station.node)
        station.answer = self.take

    def send(self, node: int, message: Any) -> None:
        self.station.peers.send(node, PLACE, message)

    def take(self, _node: int, _place: Any, message: Message) -> None:
        self.partition.step(message)
        self.worked()


@play
async def test_two_replicas_become_the_same_and_acknowledge() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as one, Station(2, addresses) as two:
        leader, follower = Wired(one), Wired(two)
        for node in (leader, follower):
            node.assigned(1, 1)
        for number in range(20):
            leader.partition.append(number, appended(bytes(1000), sequence=number))
            leader.worked()

        def is_done() -> bool:
            follower.partition.step(Tick())
            follower.worked()
            return follower.partition.replica.watermark == 20

        await until(is_done)
        assert {each.token for each in leader.outcomes if isinstance(each, Done)} == set(range(20))
        assert follower.partition.log.read(0, 10**6) == leader.partition.log.read(0, 10**6) != b""
        assert any(isinstance(each, Fetch) for each in one.messages)
        assert any(isinstance(each, Fetched) and each.batches for each in two.messages)
        assert follower.disk.exists(FOLDER)


@play
async def test_after_the_end_nothing_is_sent_or_received() -> None:
    addresses: Addresses = {}
    async with Station(1, addresses) as leader, Station(2, addresses) as follower:
        await follower.peers.stop()
        follower.peers.send(1, PLACE, question())
        follower.peers._take(1, PLACE, fetched(question()))
        await asyncio.sleep(0)
        assert follower.peers._fetchers == {}
        assert (leader.heard, follower.heard) == ([], [])
