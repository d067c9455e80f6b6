"""Every documented command and error of flux, provoked over a socket: one conversation, held against the table."""

import re
import resource
from collections import defaultdict
from pathlib import Path

from tests.adapters.flux.talk import Talk

from braidlog.testing.server import ServerProcess
from braidlog.wire.flux.messages import ErrorCode
from braidlog.wire.flux.operations import OPERATIONS

# What is asked, and the answer: whole, or as a pattern between slashes. Each line stands on those before it.
CONVERSATION = (
    ("PING", "", "OK|pong"),
    ("PING", "pong", r"/ERR\|BAD_REQUEST\|.*no arguments.*/"),
    ("ADMIN_GET_METADATA", "", "OK|topics=[] brokers=[0]"),
    ("ADMIN_GET_METADATA", "all", r"/ERR\|BAD_REQUEST\|.*/"),
    # Records. `user1` goes to partition 2 of 3 (the Flux page, §2).
    ("PRODUCE", "orders user1:created", "OK|partition=2 offset=0 hw=0"),
    ("PRODUCE", "orders user1:paid acks=1", "OK|partition=2 offset=1 hw=1"),
    ("PRODUCE", "orders user1:sent acks=all", "OK|partition=2 offset=2 hw=2"),
    ("produce", "orders dXNlcjE=:YSwgYg== enc=b64", "OK|partition=2 offset=3 hw=3"),
    ("PRODUCE", "orders user1", r"/ERR\|BAD_REQUEST\|the message must be key:value/"),
    ("PRODUCE", "orders user1:x acks=2", r"/ERR\|BAD_REQUEST\|.*acks.*/"),
    ("PRODUCE", "or/ders user1:x", r"/ERR\|BAD_REQUEST\|.*/"),
    ("PRODUCE", "__state user1:x", r"/ERR\|BAD_REQUEST\|.*the broker's own/"),
    ("CONSUME", "__state 0 0", r"/ERR\|BAD_REQUEST\|.*the broker's own/"),
    ("CONSUME", "orders 2 0", "OK|messages=0:created,1:paid,2:sent hw=3"),
    ("CONSUME", "orders 2 0 max=1", "OK|messages=0:created hw=3"),
    ("CONSUME", "orders 2 3", r"/ERR\|BAD_REQUEST\|record 3 has a comma .*enc=b64/"),
    ("CONSUME", "orders 2 3 enc=b64", "OK|messages=3:dXNlcjE=:YSwgYg== hw=3"),
    ("CONSUME", "orders 2 4", "OK|messages= hw=3"),
    ("CONSUME", "orders 2 400", "OK|messages= hw=3"),
    ("CONSUME", "orders 0 0", "OK|messages= hw=-1"),
    ("CONSUME", "unheard-of 1 0", "OK|messages= hw=-1"),
    ("CONSUME", "orders 3 0", r"/ERR\|BAD_REQUEST\|.*partitions 0 to 2, not 3/"),
    ("CONSUME", "orders 2 -1", r"/ERR\|BAD_REQUEST\|.*offset.*/"),
    # Groups. The first JOIN of a group gives 2; re-joining does not bump; lexical order; round robin unless it is said.
    ("JOIN", "readers orders b", "OK|generation=2 assigned=[0 1 2]"),
    ("JOIN", "readers orders b", "OK|generation=2 assigned=[0 1 2]"),
    ("JOIN", "readers orders a", "OK|generation=3 assigned=[0 2]"),
    ("JOIN", "readers orders a assignor=sticky", r"/ERR\|BAD_REQUEST\|.*assignor.*/"),
    ("JOIN", "readers or/ders a", r"/ERR\|BAD_REQUEST\|.*/"),
    ("SYNC", "readers orders b 3", "OK|generation=3 assigned=[1]"),
    ("SYNC", "readers orders b 2", "ERR|GENERATION_MISMATCH|stale generation"),
    ("SYNC", "readers orders b -5", "ERR|GENERATION_MISMATCH|stale generation"),
    ("SYNC", "readers orders c 3", "ERR|GENERATION_MISMATCH|unknown member"),
    ("SYNC", "writers orders a 3", "ERR|GENERATION_MISMATCH|group not found"),
    ("SYNC", "readers unheard-of a 3", "ERR|GENERATION_MISMATCH|group not found"),
    ("SYNC", "readers orders b three", r"/ERR\|BAD_REQUEST\|.*generation.*/"),
    ("HEARTBEAT", "readers orders a 3", "OK|heartbeat=ok"),
    ("HEARTBEAT", "readers orders a 4", "ERR|GENERATION_MISMATCH|stale generation"),
    ("HEARTBEAT", "readers orders a", r"/ERR\|BAD_REQUEST\|HEARTBEAT requires.*/"),
    ("OFFSET", "readers orders 2", "OK|offset=0"),
    ("COMMIT", "readers orders a 3 2 3", "OK|committed=true"),
    ("COMMIT", "readers orders a 3 1 3", "ERR|GENERATION_MISMATCH|partition not assigned to member"),
    ("COMMIT", "readers orders a 3 9 3", "ERR|GENERATION_MISMATCH|partition not assigned to member"),
    ("COMMIT", "readers orders a 2 2 4", "ERR|GENERATION_MISMATCH|stale generation"),
    ("COMMIT", "readers orders c 3 2 4", "ERR|GENERATION_MISMATCH|unknown member"),
    ("COMMIT", "writers orders a 3 2 4", "ERR|GENERATION_MISMATCH|group not found"),
    ("COMMIT", "readers orders a 3 2 -4", r"/ERR\|BAD_REQUEST\|.*offset.*/"),
    ("OFFSET", "readers orders 2", "OK|offset=3"),
    ("OFFSET", "readers orders 1", "OK|offset=0"),
    ("OFFSET", "nobody unheard-of-too 1", "OK|offset=0"),
    ("OFFSET", "readers orders two", r"/ERR\|BAD_REQUEST\|.*partition.*/"),
    ("LEAVE", "readers orders a 2", "ERR|GENERATION_MISMATCH|stale generation"),
    ("LEAVE", "readers orders a 3", "OK|left=true"),
    ("LEAVE", "readers orders a 4", "ERR|GENERATION_MISMATCH|unknown member"),
    ("LEAVE", "readers orders", r"/ERR\|BAD_REQUEST\|LEAVE requires.*/"),
    ("SYNC", "readers orders b 4", "OK|generation=4 assigned=[0 1 2]"),
    ("JOIN", "ranged orders a assignor=range", "OK|generation=2 assigned=[0 1 2]"),
    ("JOIN", "ranged orders b", "OK|generation=3 assigned=[2]"),
    ("SYNC", "ranged orders a 3", "OK|generation=3 assigned=[0 1]"),
    ("JOIN", "ranged orders a assignor=round_robin", "OK|generation=4 assigned=[0 2]"),
    # Replicas.
    ("ADMIN_CREATE_TOPIC", "pay 1 3", r"/OK\|topic=pay partitions=1 replication_factor=3 term=1 index=\d+/"),
    ("ADMIN_CREATE_TOPIC", "pay 1 3", r"/ERR\|BAD_REQUEST\|.*exists/"),
    ("ADMIN_CREATE_TOPIC", "pay2 0 3", r"/ERR\|BAD_REQUEST\|.*/"),
    ("ADMIN_CREATE_TOPIC", "pay2 1000000 3", r"/ERR\|BAD_REQUEST\|.*/"),
    ("ADMIN_CREATE_TOPIC", "pay2 1 2000000000", r"/ERR\|BAD_REQUEST\|.*replicas.*/"),
    ("PRODUCE", "pay k:a acks=all", r"/ERR\|REPLICATION_TIMEOUT\|1 of 3 replicas of pay\/0 are in sync .*/"),
    ("PRODUCE", "pay k:b", "OK|partition=0 offset=1 hw=1"),
    ("REPLICA_FETCH", "pay 0 1 0", "OK|replica=1 acked_offset=0 hw=1 isr=[0] under_replicated=true"),
    ("REPLICA_FETCH", "pay 0 1 1", "OK|replica=1 acked_offset=1 hw=1 isr=[0 1] under_replicated=true"),
    ("REPLICA_FETCH", "pay 0 2 1", "OK|replica=2 acked_offset=1 hw=1 isr=[0 1 2] under_replicated=false"),
    ("REPLICA_FETCH", "pay 0 3 1", r"/ERR\|BAD_REQUEST\|.*'3' holds no replica.*/"),
    ("REPLICA_FETCH", "pay 0 0 1", r"/ERR\|BAD_REQUEST\|.*replica_id.*/"),
    ("REPLICA_FETCH", "pay 0 1 2", r"/ERR\|BAD_REQUEST\|.*the leader ends at 2/"),
    ("REPLICA_FETCH", "orders 0 1 0", r"/ERR\|BAD_REQUEST\|.*holds no replica.*/"),
    ("REPLICA_FETCH", "nowhere 0 1 0", r"/ERR\|BAD_REQUEST\|.*no topic 'nowhere'.*/"),
    # What is in sync has to have it: without their word a record is not committed.
    ("PRODUCE", "pay k:c", "OK|partition=0 offset=2 hw=1"),
    ("CONSUME", "pay 0 1", "OK|messages=1:b hw=1"),
    ("REPLICA_FETCH", "pay 0 1 2", "OK|replica=1 acked_offset=2 hw=1 isr=[0 1 2] under_replicated=false"),
    ("REPLICA_FETCH", "pay 0 2 2", "OK|replica=2 acked_offset=2 hw=2 isr=[0 1 2] under_replicated=false"),
    ("CONSUME", "pay 0 1", "OK|messages=1:b,2:c hw=2"),
    # Brokers of Flux's own copy what is not committed yet, and tell how far they have come: so it is committed.
    ("PRODUCE", "pay k:x", "OK|partition=0 offset=3 hw=2"),
    ("BROKER_FETCH", "pay 0 1 2 100", "OK|topic=pay partition=0 follower=1 hw=2 records=2:c,3:x"),
    ("BROKER_FETCH", "pay 0 1 0 2", "OK|topic=pay partition=0 follower=1 hw=2 records=0:a,1:b"),
    ("BROKER_FETCH", "pay 0 1 4", "OK|topic=pay partition=0 follower=1 hw=2 records="),
    ("BROKER_FETCH", "pay 0 1 400", "OK|topic=pay partition=0 follower=1 hw=2 records="),
    ("BROKER_FETCH", "orders 2 1 3", r"/ERR\|BAD_REQUEST\|record 3 has a comma .*enc=b64/"),
    ("BROKER_FETCH", "orders 2 1 3 enc=b64", "OK|topic=orders partition=2 follower=1 hw=3 records=3:dXNlcjE=:YSwgYg=="),
    ("BROKER_FETCH", "nowhere 0 1 0", r"/ERR\|BAD_REQUEST\|.*no topic 'nowhere'.*/"),
    (
        "BROKER_REPLICA_ACK",
        "pay 0 1 3",
        "OK|topic=pay partition=0 follower=1 acked_offset=3 hw=2 isr=[0 1 2] under_replicated=false",
    ),
    (
        "BROKER_REPLICA_ACK",
        "pay 0 2 3",
        "OK|topic=pay partition=0 follower=2 acked_offset=3 hw=3 isr=[0 1 2] under_replicated=false",
    ),
    ("BROKER_REPLICA_ACK", "pay 0 1 4", r"/ERR\|BAD_REQUEST\|.*the leader ends at 4/"),
    ("BROKER_REPLICA_ACK", "pay 0 0 1", r"/ERR\|BAD_REQUEST\|.*'0' holds no replica.*/"),
    # Roles.
    ("SET_PARTITION_ROLE", "pay 0 follower", "OK|topic=pay partition=0 role=follower hw=3"),
    ("SET_PARTITION_ROLE", "pay 0 boss", r"/ERR\|BAD_REQUEST\|.*leader\|follower.*/"),
    ("SET_PARTITION_ROLE", "pay 1 leader", r"/ERR\|BAD_REQUEST\|.*partitions 0 to 0, not 1/"),
    ("PRODUCE", "pay k:d", r"/ERR\|NOT_LEADER\|.*/"),
    ("REPLICA_FETCH", "pay 0 1 2", r"/ERR\|NOT_LEADER\|.*/"),
    ("BROKER_FETCH", "pay 0 1 0", r"/ERR\|NOT_LEADER\|.*/"),
    ("BROKER_REPLICA_ACK", "pay 0 1 2", r"/ERR\|NOT_LEADER\|.*/"),
    ("SET_PARTITION_ROLE", "pay 0 leader", "OK|topic=pay partition=0 role=leader hw=3"),
    ("PRODUCE", "pay k:d", "OK|partition=0 offset=4 hw=3"),
    # Brokers.
    ("ADMIN_REGISTER_BROKER", "1 127.0.0.1 9093 100", r"/OK\|broker_id=1 host=127.0.0.1 port=9093 term=1 index=\d+/"),
    ("ADMIN_REGISTER_BROKER", "1 127.0.0.1 9093 99", r"/ERR\|BAD_REQUEST\|.*epoch 100, not 99/"),
    ("ADMIN_REGISTER_BROKER", "1 [::1] 9094", r"/OK\|broker_id=1 host=\[::1\] port=9094 term=1 index=\d+/"),
    ("ADMIN_REGISTER_BROKER", "1 [::1] 9094 99", r"/ERR\|BAD_REQUEST\|.*epoch 100, not 99/"),
    ("ADMIN_REGISTER_BROKER", "1 127.0.0.1 0", r"/ERR\|BAD_REQUEST\|.*port.*/"),
    ("ADMIN_BROKER_HEARTBEAT", "1", r"/OK\|broker_id=1 heartbeat=ok term=1 index=\d+/"),
    ("ADMIN_BROKER_HEARTBEAT", "2", "ERR|BAD_REQUEST|broker 2 is not registered"),
    ("ADMIN_SET_PARTITION_LEADER", "pay 0 1 1,0", r"/OK\|topic=pay partition=0 leader=1 isr=\[1 0\] term=2 index=\d+/"),
    ("PRODUCE", "pay k:e", r"/ERR\|NOT_LEADER\|.*/"),
    ("ADMIN_SET_PARTITION_LEADER", "pay 0 0 0", r"/OK\|topic=pay partition=0 leader=0 isr=\[0\] term=3 index=\d+/"),
    ("PRODUCE", "pay k:e", "OK|partition=0 offset=5 hw=3"),
    ("ADMIN_SET_PARTITION_LEADER", "pay 0 2 0,2", "ERR|BAD_REQUEST|broker 2 is not registered"),
    ("ADMIN_SET_PARTITION_LEADER", "nowhere 0 0 0", r"/ERR\|BAD_REQUEST\|.*no topic 'nowhere'.*/"),
    ("ADMIN_GET_METADATA", "", "OK|topics=[orders pay unheard-of] brokers=[0 1]"),
    # A broker that is fenced leads nothing: what it was given, this one leads again.
    ("ADMIN_SET_PARTITION_LEADER", "pay 0 1 1,0", r"/OK\|topic=pay partition=0 leader=1 .*/"),
    ("ADMIN_ELECT_TOPIC_LEADERS", "pay", "OK|topic=pay elected_changes=0"),
    ("ADMIN_ELECT_TOPIC_LEADERS", "nowhere", r"/ERR\|BAD_REQUEST\|.*no topic 'nowhere'.*/"),
    ("ADMIN_FENCE_BROKER", "2", "ERR|BAD_REQUEST|broker 2 is not registered"),
    ("ADMIN_FENCE_BROKER", "0", r"/ERR\|UNAVAILABLE\|.*it is the only one.*/"),
    ("ADMIN_FENCE_BROKER", "1", r"/OK\|broker_id=1 fenced=true term=1 index=\d+/"),
    ("ADMIN_GET_METADATA", "", "OK|topics=[orders pay unheard-of] brokers=[0 1] fenced=[1]"),
    ("ADMIN_RECONCILE_BROKER_HEALTH", "3600000", "OK|reconciled=0"),
    ("ADMIN_RECONCILE_BROKER_HEALTH", "0", r"/ERR\|BAD_REQUEST\|.*timeout_ms.*/"),
    ("ADMIN_ELECT_TOPIC_LEADERS", "pay", "OK|topic=pay elected_changes=1"),
    ("PRODUCE", "pay k:f", "OK|partition=0 offset=6 hw=3"),
    ("ADMIN_UNFENCE_BROKER", "1", r"/OK\|broker_id=1 fenced=false term=1 index=\d+/"),
    ("ADMIN_UNFENCE_BROKER", "2", "ERR|BAD_REQUEST|broker 2 is not registered"),
    ("ADMIN_GET_METADATA", "", "OK|topics=[orders pay unheard-of] brokers=[0 1]"),
    ("ADMIN_UNHEARD_OF", "1", r"/ERR\|UNKNOWN_COMMAND\|.*/"),
)


def matches(expected: str, answer: str) -> bool:
    return re.fullmatch(expected[1:-1], answer) is not None if expected.startswith("/") else expected == answer


def test_every_command_and_every_error_of_the_table(tmp_path: Path) -> None:
    seen: defaultdict[str, set[str]] = defaultdict(set)
    with ServerProcess(tmp_path / "data") as server, Talk(server.address("flux")) as talk:
        for command, args, expected in CONVERSATION:
            answer = talk.ask(command, args)
            assert matches(expected, answer), f"{command} {args}: {answer}, and not {expected}"
            seen[command.upper()].add(answer.split("|")[1] if answer.startswith("ERR") else "OK")
        # A disk that is full: the request is right, and cannot be served.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        answer = talk.ask("PRODUCE", "fresh user1:x")
        assert answer.startswith("ERR|UNAVAILABLE|"), answer
        assert str(tmp_path) not in answer
        seen["PRODUCE"].add("UNAVAILABLE")
        assert talk.ask("PING") == "OK|pong"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert talk.ask("PRODUCE", "fresh user1:x") == "OK|partition=2 offset=0 hw=0"
    for operation in OPERATIONS:
        documented = {"OK", ErrorCode.BAD_REQUEST, *operation.errors}
        found = seen[operation.command] - {ErrorCode.UNAVAILABLE}
        assert found == documented, f"{operation.command}: provoked {sorted(found)}, documented {sorted(documented)}"
    assert {code for codes in seen.values() for code in codes} == {"OK", *ErrorCode}
