"""What flux acknowledged is there after the node was stopped, and after kill -9."""

from collections.abc import Callable

import pytest
from tests.adapters.flux.talk import Talk

from braidlog.testing.server import ServerProcess

BEFORE = (
    ("ADMIN_CREATE_TOPIC", "pay 2 2"),
    ("PRODUCE", "orders user1:created"),
    ("PRODUCE", "orders user1:paid acks=all"),
    ("PRODUCE", "orders dXNlcjE=:YSwgYg== enc=b64"),
    ("JOIN", "readers orders a assignor=range"),
    ("JOIN", "readers orders b"),
    ("COMMIT", "readers orders a 3 1 41"),
    ("COMMIT", "readers orders b 3 2 2"),
    ("ADMIN_REGISTER_BROKER", "7 host 9093 12"),
    ("SET_PARTITION_ROLE", "pay 1 follower"),
    ("ADMIN_SET_PARTITION_LEADER", "orders 0 7 7,0"),
    ("ADMIN_SET_PARTITION_LEADER", "orders 0 0 0"),
)

QUESTIONS = (
    ("ADMIN_GET_METADATA", "", "OK|topics=[orders pay] brokers=[0 7]"),
    (
        "CONSUME",
        "orders 2 0 enc=b64",
        "OK|messages=0:dXNlcjE=:Y3JlYXRlZA==,1:dXNlcjE=:cGFpZA==,2:dXNlcjE=:YSwgYg== hw=2",
    ),
    ("SYNC", "readers orders a 3", "OK|generation=3 assigned=[0 1]"),
    ("SYNC", "readers orders b 3", "OK|generation=3 assigned=[2]"),
    ("SYNC", "readers orders b 2", "ERR|GENERATION_MISMATCH|stale generation"),
    ("OFFSET", "readers orders 1", "OK|offset=41"),
    ("OFFSET", "readers orders 2", "OK|offset=2"),
    ("ADMIN_REGISTER_BROKER", "7 host 9093 11", "ERR|BAD_REQUEST|broker 7 is registered with epoch 12, not 11"),
    ("REPLICA_FETCH", "pay 0 2 0", "ERR|BAD_REQUEST|node '2' holds no replica of this partition"),
)


@pytest.mark.parametrize("end", [ServerProcess.stop, ServerProcess.kill], ids=["stop", "kill"])
def test_what_was_acknowledged_is_there_after_a_restart(
    braid_server: ServerProcess, end: Callable[[ServerProcess], object]
) -> None:
    with Talk(braid_server.address("flux")) as talk:
        for command, args in BEFORE:
            answer = talk.ask(command, args)
            assert answer.startswith("OK|"), f"{command} {args}: {answer}"
    end(braid_server)
    braid_server.restart()
    with Talk(braid_server.address("flux")) as talk:
        for command, args, expected in QUESTIONS:
            assert talk.ask(command, args) == expected
        # The roles too: a follower does not take records because it was restarted.
        roles = [talk.ask("PRODUCE", f"pay {key}:v") for key in ("a", "b")]
        assert sorted(role[:14] for role in roles) == ["ERR|NOT_LEADER", "OK|partition=0"]
        assert talk.ask("ADMIN_SET_PARTITION_LEADER", "orders 0 0 0").startswith(
            "OK|topic=orders partition=0 leader=0 isr=[0] term=2 "
        )
        assert talk.ask("PRODUCE", "orders user1:again") == "OK|partition=2 offset=3 hw=3"
        assert talk.ask("JOIN", "readers orders c") == "OK|generation=4 assigned=[2]"
