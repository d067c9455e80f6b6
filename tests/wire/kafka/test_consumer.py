"""Subscriptions and assignments: bytes of the published schemas, of a foreign client, and bytes that are neither."""

import random
import warnings

import pytest

from braidlog.codec.errors import ProtocolError
from braidlog.wire.kafka.consumer import ConsumerMetadata, assignment, read_assignment, read_subscription, subscription

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

# i16 version | i32 count | i16 length, topic ... | i32 length of user data (-1: null)
SUBSCRIPTION_0 = bytes.fromhex("0000000000020001 610002 6263ffffffff")
# version 3: ... | user data 01 | owned: 1 topic "a", partitions [7] | generation 5 | rack "r"
SUBSCRIPTION_3 = bytes.fromhex("0003000000010001 6100000001 0100000001 0001 61 00000001 00000007000000050001 72")
# i16 version | i32 count | i16 length, topic | i32 count, i32 each | i32 length of user data
ASSIGNMENT_0 = bytes.fromhex("0000000000010001 6100000002 00000000 00000002ffffffff")


def test_bytes_of_the_schema() -> None:
    assert subscription(["a", "bc"]) == SUBSCRIPTION_0
    assert read_subscription(SUBSCRIPTION_0).topics == ["a", "bc"]
    found = read_subscription(SUBSCRIPTION_3)
    assert (found.topics, found.user_data) == (["a"], b"\x01")
    assert ConsumerMetadata().subscription(SUBSCRIPTION_3) == (["a"], {"a": {7}})
    assert ConsumerMetadata().subscription(SUBSCRIPTION_3[:14]) == (["a"], {}), "what was forgotten is not owned"
    assert assignment({"a": [0, 2]}) == ASSIGNMENT_0
    assert [(each.topic, each.partitions) for each in read_assignment(ASSIGNMENT_0).assigned_partitions] == [
        ("a", [0, 2])
    ]
    assert read_assignment(b"").assigned_partitions == []


def test_a_foreign_client_reads_and_writes_the_same() -> None:
    assert list(ConsumerProtocolSubscription.decode(subscription(["a", "bc"])).topics) == ["a", "bc"]
    decoded = ConsumerProtocolAssignment.decode(assignment({"a": [0, 2], "b": []}))
    assert [(each.topic, list(each.partitions)) for each in decoded.assigned_partitions] == [("a", [0, 2]), ("b", [])]
    theirs = ConsumerProtocolSubscription(topics=["a", "bc"], user_data=b"x", owned_partitions=[], version=1).encode(
        header=True
    )
    assert read_subscription(bytes(theirs)).topics == ["a", "bc"]


@pytest.mark.parametrize("whole", [SUBSCRIPTION_0, ASSIGNMENT_0])
def test_cut_off_anywhere(whole: bytes) -> None:
    read = read_subscription if whole is SUBSCRIPTION_0 else read_assignment
    for size in range(len(whole)):
        if size or read is read_subscription:
            with pytest.raises(ProtocolError):
                read(whole[:size])
    with pytest.raises(ProtocolError, match="-1 is not a version"):
        read(b"\xff\xff" + whole[2:])


def test_damage_is_a_protocol_error_or_another_value() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for whole, read in ((SUBSCRIPTION_3, read_subscription), (ASSIGNMENT_0, read_assignment)):
        for _ in range(2000):
            damaged = bytearray(whole)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            try:
                read(bytes(damaged))
            except ProtocolError:
                continue
