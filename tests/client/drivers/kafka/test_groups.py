"""How the member that leads a group shares out partitions."""

import random

from braidlog.client.drivers.kafka.groups import ranges


def test_ranges_as_every_client_shares_them_out() -> None:
    """The example of Kafka's RangeAssignor: two members, two topics of three partitions."""
    both = {"C0": ["t0", "t1"], "C1": ["t0", "t1"]}
    assert ranges(both, {"t0": 3, "t1": 3}) == {
        "C0": {"t0": [0, 1], "t1": [0, 1]},
        "C1": {"t0": [2], "t1": [2]},
    }
    assert ranges({"b": ["t"], "a": ["t"], "c": ["u"]}, {"t": 1, "u": 2, "v": 1}) == {
        "b": {},
        "a": {"t": [0]},
        "c": {"u": [0, 1]},
    }
    assert ranges({"a": ["gone"]}, {}) == {"a": {}}


def test_every_partition_has_one_reader_whatever_the_numbers() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        topics = {f"t{at}": chance.randint(0, 9) for at in range(chance.randint(1, 4))}
        members = {
            f"m{at}": chance.sample(sorted(topics), chance.randint(1, len(topics)))
            for at in range(chance.randint(1, 5))
        }
        shares = ranges(members, topics)
        for topic, partitions in topics.items():
            readers = [member for member in members if topic in members[member]]
            given = [number for member in shares for number in shares[member].get(topic, [])]
            assert sorted(given) == (list(range(partitions)) if readers else [])
            assert all(topic not in shares[member] for member in members if member not in readers)
            sizes = [len(shares[member].get(topic, [])) for member in readers]
            assert not sizes or max(sizes) - min(sizes) <= 1
