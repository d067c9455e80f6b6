"""What one follower asks: portions, the throttle, and answers that fit no question."""

import pytest
from tests.server.peers.station import PLACE, batch, fetched, question

from braidlog.adapters.peers import follower_sessions
from braidlog.adapters.peers.follower_sessions import FollowerSession, Throttle
from braidlog.adapters.peers.replica_messages import Place
from braidlog.broker.partition_reports import ReplicationRate
from braidlog.model.settings import UNLIMITED
from braidlog.replication.messages import Fetch

PLACES = [(PLACE[0], number) for number in range(10)]


class Leader:
    """Answers every question with a batch of so many bytes, as soon as it is handed on."""

    def __init__(self, rate: float | None = None, in_sync: tuple[int, ...] = ()) -> None:
        self.rate = ReplicationRate(UNLIMITED if rate is None else rate)
        self.now = 0.0
        self.given: list[int] = []
        self.session = FollowerSession(2, 1, lambda _, place: place[1] in in_sync, Throttle(self.rate))

    def give(self, place: Place, asked: Fetch) -> None:
        self.given.append(place[1])
        assert self.session.answered(place, fetched(asked, batch(1, bytes(10_000))), self.now)

    def hand_on(self, count_max: int = 50) -> float | None:
        return self.session.hand_on(self.give, self.now, count_max)

    def ask_all(self) -> None:
        for number, place in enumerate(PLACES, 1):
            assert self.session.ask(place, number, question(1))


def test_questions_go_on_in_portions_and_each_once() -> None:
    leader = Leader()
    leader.ask_all()
    assert (leader.hand_on(4), leader.given) == (0.0, [0, 1, 2, 3])
    leader.session.ask(PLACES[9], 99, question(1))
    assert (leader.hand_on(), leader.given) == (None, list(range(10)))
    told = dict(leader.session.take_answers())
    assert [told[place].question for place in PLACES] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 99]
    assert not leader.session.has_answers


def test_records_for_who_is_not_in_sync_keep_to_the_throttle() -> None:
    """10 kB a second, each answer a little more: one at once, the others a second apart; who is in sync does not wait."""
    leader = Leader(rate=10_000, in_sync=(8, 9))
    leader.ask_all()
    pause = leader.hand_on()
    assert leader.given == [0, 8, 9]
    assert pause is not None
    assert 0 < pause < 0.1
    seen = []
    for second in range(1, 11):
        leader.now = second * 1.0
        leader.hand_on()
        seen.append(len(leader.given) - 3)
    assert seen == sorted(seen)
    assert 5 <= seen[5] <= 6
    assert (len(leader.given), leader.hand_on()) == (10, None)
    assert leader.given[3:] == [1, 2, 3, 4, 5, 6, 7], "in the order in which they asked"


def test_the_throttle_is_what_was_asked_for_last() -> None:
    leader = Leader()
    leader.rate.asked = 10_000
    leader.ask_all()
    leader.hand_on()
    assert leader.given == [0]
    leader.rate.asked = 25_000
    leader.hand_on()
    assert leader.given == [0, 1, 2, 3]
    leader.rate.asked = None
    assert (leader.hand_on(), leader.given) == (None, list(range(10)))


def test_there_is_room_for_so_many_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    leader.ask_all()
    monkeypatch.setattr(follower_sessions, "ANSWERS_BYTES_MAX", 25_000)
    assert (leader.hand_on(), leader.given) == (None, [0, 1, 2])
    assert len(dict(leader.session.take_answers())) == 2
    assert (leader.hand_on(), leader.given) == (None, [0, 1, 2, 3, 4]), "one is still here"


def test_a_response_is_no_larger_than_it_may_be_but_for_a_first_answer() -> None:
    """Else a batch as large as a frame may be would come behind others, and its frame be one too large."""
    session = FollowerSession(2, 1, lambda *_: True, Throttle(ReplicationRate()))
    for place, size in zip(PLACES, (1_000, follower_sessions.ANSWERS_BYTES_MAX, 1_000), strict=False):
        session.ask(place, 1, question(1))
        session.answered(place, fetched(question(1), batch(1, bytes(size))), 0.0)
    taken = []
    while session.has_answers:
        taken.append([place[1] for place, _ in session.take_answers()])
    assert taken == [[0], [1], [2]]


def test_an_answer_is_for_the_question_that_stands() -> None:
    leader = Leader()
    session = leader.session
    session.ask(PLACE, 1, question(1))
    assert not session.answered(PLACE, fetched(question(2)), 0.0)
    assert not session.answered(PLACES[1], fetched(question(1)), 0.0)
    assert session.answered(PLACE, fetched(question(1), batch(1, b"x")), 0.0)
    assert not session.answered(PLACE, fetched(question(1)), 0.0), "it has its answer"
    session.ask(PLACE, 2, question(5))
    assert not session.has_answers, "who asks again does not want the old one"


def test_there_are_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    monkeypatch.setattr(follower_sessions, "PARTITIONS_MAX", 2)
    asked = [leader.session.ask(place, 1, question(1)) for place in (*PLACES[:3], PLACES[0])]
    assert asked == [True, True, False, True]
