"""Guessing is slow: per network, however many connections take part; and nobody else notices."""

import hashlib

import pytest
from tests.model.manual_world import Job, ManualRuntime

from braidlog.security import authentication
from braidlog.security.authentication import Authenticate, Pauses, Proof, network_of
from braidlog.security.authorization import Authorize
from braidlog.testing.clock import ManualClock

PAUSES = Pauses(first_seconds=1.0, seconds_max=8.0, failure_memory_seconds=100.0)


async def right() -> bool:
    return True


class Scene:
    def __init__(self) -> None:
        self.runtime = ManualRuntime(ManualClock())
        tokens = {"alice": hashlib.sha256(b"right").hexdigest(), "bob": hashlib.sha256(b"bobs").hexdigest()}
        self.service = Authenticate(Authorize(tokens, []), self.runtime, PAUSES)

    def prove(self, token: bytes = b"right", host: str = "10.0.0.1", principal: str = "alice") -> "Job[bool]":
        return self.runtime.spawn(self.service.prove(host, principal, token))

    def judge(self, holds: Proof, host: str = "10.0.0.1") -> "Job[bool]":
        """A proof that is no token: a password."""
        return self.runtime.spawn(self.service.verify_proof(host, holds))

    def seconds_until(self, job: "Job[bool]", seconds_max: int = 100) -> int:
        for seconds in range(seconds_max):
            if job.is_done:
                return seconds
            self.runtime.advance(1000)
        raise AssertionError("it takes for ever")


def test_the_right_token_is_answered_at_once() -> None:
    scene = Scene()
    job = scene.prove()
    assert job.is_done
    assert job.result() is True
    assert len(scene.service) == 0


@pytest.mark.parametrize(("principal", "token"), [("alice", b"wrong"), ("nobody", b"right"), ("alice", b"bobs")])
def test_what_is_wrong_takes_the_same_time(principal: str, token: bytes) -> None:
    scene = Scene()
    job = scene.prove(token, principal=principal)
    assert scene.seconds_until(job) == 1
    assert job.result() is False


def test_each_failure_doubles_the_pause_up_to_a_limit() -> None:
    scene = Scene()
    assert [scene.seconds_until(scene.prove(b"wrong")) for _ in range(6)] == [1, 2, 4, 8, 8, 8]


def test_many_connections_guess_passwords_no_faster_than_one() -> None:
    """All at once: about one is looked at per pause."""
    scene = Scene()
    tries = 0

    async def wrong() -> bool:
        nonlocal tries
        tries += 1
        return False

    scene.judge(wrong)
    jobs = [scene.judge(wrong) for _ in range(16)]
    tries = 0
    for _ in range(20):
        scene.runtime.advance(1000)
    assert tries <= 4  # after 1, 3, 7 and 15 seconds
    assert not any(job.result() for job in jobs if job.is_done)


def test_a_right_token_passes_at_once_whoever_guesses_at_its_address() -> None:
    scene = Scene()
    for _ in range(200):
        scene.prove(b"wrong")
        job = scene.prove()
        assert job.is_done
        assert job.result() is True


def test_leaving_and_coming_back_does_not_shorten_the_pause() -> None:
    scene = Scene()
    scene.prove(b"wrong").cancel()
    job = scene.judge(right)
    assert not job.is_done
    assert scene.seconds_until(job) == 1
    assert job.result() is True


def test_those_who_are_right_pass_together() -> None:
    scene = Scene()
    scene.prove(b"wrong")
    good = [scene.judge(right) for _ in range(10)]
    scene.runtime.advance(1000)
    assert [job.is_done and job.result() for job in good] == [True] * 10


def test_a_good_client_gets_its_turn_among_guessers_of_its_own_address() -> None:
    scene = Scene()
    for _ in range(2):
        scene.prove(b"wrong")
    good = scene.judge(right)
    scene.prove(b"wrong")
    assert scene.seconds_until(good) == 3  # behind the two that came before it, not behind the third
    assert good.result() is True


def test_nobody_in_a_long_line_is_refused_unheard() -> None:
    """However many guess before it: a right password is looked at in the end."""
    scene = Scene()
    for _ in range(100):
        scene.prove(b"wrong")
    good = [scene.judge(right) for _ in range(50)]
    for _ in range(int(authentication.WAIT_SECONDS_MAX)):
        scene.runtime.advance(1000)
    assert [job.is_done and job.result() for job in good] == [True] * 50


def test_other_networks_do_not_wait() -> None:
    scene = Scene()
    for _ in range(50):
        scene.prove(b"wrong")
    assert scene.judge(right, host="10.0.0.2").is_done


def test_failures_are_forgotten() -> None:
    scene = Scene()
    for _ in range(3):
        scene.seconds_until(scene.prove(b"wrong"))
    scene.runtime.advance(101_000)
    assert scene.judge(right).is_done
    assert len(scene.service) == 0
    assert scene.seconds_until(scene.prove(b"wrong")) == 1


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "NETWORKS_MAX", 3)
    scene = Scene()
    for number in range(10):
        scene.prove(b"wrong", host=f"10.0.0.{number}")
    assert len(scene.service) == 3
    assert scene.judge(right, host="10.0.0.1").is_done
    assert not scene.judge(right, host="10.0.0.9").is_done


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("local", "local"),
    ],
)
def test_who_is_one_guesser(address: str, network: str) -> None:
    assert network_of(address) == network
