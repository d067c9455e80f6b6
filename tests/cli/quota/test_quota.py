"""`braid quota` against a real node."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.braid import Braid, fresh

from braidlog.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    configured = ("--set", "quotas.fetch_bytes_per_second=900000000")
    with ServerProcess(tmp_path_factory.mktemp("limited") / "data", *configured) as server:
        yield server


@pytest.fixture
def braid(server: ServerProcess) -> Braid:
    return Braid(server)


def _quota(braid: Braid, **whose: str) -> dict[str, Any] | None:
    """The rates of one, without those that are none."""
    names = dict.fromkeys(("user", "client_id", "address")) | whose
    for row in braid.json("quota", "list", schema="quota-list"):
        if {name: row[name] for name in names} == names:
            return {name: rate for name, rate in row.items() if name not in names and rate is not None}
    return None


def test_rates_of_a_user_are_set_one_by_one_and_removed_together(braid: Braid) -> None:
    user = fresh("bulk")
    said = braid.ok("quota", "set", "--user", user, "--append-bytes", "123456789", "--request-percent", "12.5")
    assert said == f"set the quota of user {user}\n"
    assert _quota(braid, user=user) == {"append_bytes_per_second": 123456789, "request_percent": 12.5}
    braid.ok("quota", "set", "--user", user, "--fetch-bytes", "7", "--request-percent", "20")
    rates = {"append_bytes_per_second": 123456789, "fetch_bytes_per_second": 7, "request_percent": 20.0}
    assert _quota(braid, user=user) == rates
    assert [user, "123456789", "7", "20.0"] in [line.split() for line in braid.ok("quota", "list").splitlines()]
    assert braid.ok("quota", "remove", "--user", user) == f"removed the quota of user {user}\n"
    assert _quota(braid, user=user) is None
    assert f"user {user} has no quota" in braid.fails(1, "quota", "remove", "--user", user)


@pytest.mark.parametrize(
    ("whose", "rate", "field"),
    [
        ({"client_id": "loader"}, "--append-bytes", "append_bytes_per_second"),
        ({"user": "ann", "client_id": "loader"}, "--fetch-bytes", "fetch_bytes_per_second"),
        ({"user": "ann", "client_id": "*"}, "--fetch-bytes", "fetch_bytes_per_second"),
        ({"client_id": "*"}, "--append-bytes", "append_bytes_per_second"),
        ({"address": "10.9.8.7"}, "--connections", "connections_per_second"),
        ({"address": "2001:db8::1"}, "--connections", "connections_per_second"),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_whose_a_quota_is(braid: Braid, whose: dict[str, str], rate: str, field: str) -> None:
    named = [word for kind, name in whose.items() for word in ("--" + kind.replace("_", "-"), name)]
    braid.ok("quota", "set", *named, rate, "1000000000")
    assert _quota(braid, **whose) == {field: 1000000000}
    braid.ok("quota", "remove", *named)
    assert _quota(braid, **whose) is None


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["set", "--append-bytes", "5"], 2, "missing target"),
        (["remove"], 2, "missing target"),
        (["set", "--user", "ann"], 2, "nothing to set"),
        (["set", "--user", "ann", "--address", "10.0.0.1", "--connections", "5"], 2, "cannot be combined"),
        (["set", "--user", "ann", "--append-bytes", "0"], 2, "0 is not in the range"),
        (["set", "--user", "ann", "--connections", "5"], 3, "addresses have a rate of connections and no other"),
        (["set", "--address", "somewhere", "--connections", "5"], 3, "is no address"),
        (["set", "--user", "", "--append-bytes", "5"], 3, "an entity name cannot be empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_refused(braid: Braid, args: list[str], code: int, words: str) -> None:
    assert words in braid.fails(code, "quota", *args)


def test_those_of_the_settings_are_shown_and_not_removed(braid: Braid) -> None:
    configured = {"fetch_bytes_per_second": 900000000}
    assert _quota(braid, user="*") == configured
    assert "comes from the node's settings" in braid.fails(1, "quota", "remove", "--user", "*")
    braid.ok("quota", "set", "--user", "*", "--append-bytes", "800000000", "--fetch-bytes", "700000000")
    assert _quota(braid, user="*") == {"append_bytes_per_second": 800000000, "fetch_bytes_per_second": 700000000}
    braid.ok("quota", "remove", "--user", "*")
    assert _quota(braid, user="*") == configured


def test_a_door_without_words_for_quotas_says_which_has(server: ServerProcess) -> None:
    assert "supported by: kafka" in Braid(server, "flux").fails(3, "quota", "list")
