"""What the kafka driver is made of, each part by itself: passwords, ranges, batches."""

import base64
import random
from itertools import count

import pytest

from braidlog.client.drivers.kafka.groups import ranges
from braidlog.client.drivers.kafka.records import batch_of, fetched, weigh, whole_batches
from braidlog.client.drivers.kafka.rules import refused
from braidlog.client.drivers.kafka.sasl import SaslError, exchange
from braidlog.client.errors import Refusal
from braidlog.codec.batch import HEADER_BYTES
from braidlog.codec.compression import Compression
from braidlog.codec.errors import ProtocolError
from braidlog.codec.records import control_batch, encode_batch
from braidlog.model.record import NewRecord

# -- passwords -----------------------------------------------------------------------------------------------------

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
ASKED = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROVED = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_as_the_rfc_has_it() -> None:
    steps = exchange("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert next(steps) == FIRST
    assert steps.send(ASKED) == PROVED
    with pytest.raises(StopIteration):
        steps.send(SIGNED)


@pytest.mark.parametrize(
    ("asked", "signed", "fault"),
    [
        (b"e=other-error", b"", "no first message"),
        (ASKED.replace(b"r=rOpr", b"r=sOpr"), b"", "nonce"),
        (ASKED.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), b"", "nonce"),
        (ASKED.replace(b"i=4096", b"i=1"), b"", "1 iterations"),
        (ASKED.replace(b"i=4096", b"i=999999999"), b"", "iterations"),
        (ASKED, b"e=invalid-proof", "does not know"),
        (ASKED, SIGNED.replace(b"6rri", b"6rrj"), "does not know"),
        (ASKED, b"v=" + base64.b64encode(b"x" * 32), "does not know"),
        (ASKED, b"v=!", "base64"),
    ],
)
def test_a_server_that_does_not_know_the_password(asked: bytes, signed: bytes, fault: str) -> None:
    steps = exchange("SCRAM-SHA-256", "user", "pencil", NONCE)
    next(steps)
    with pytest.raises(SaslError, match=fault):
        [steps.send(said) for said in (asked, signed)]


def test_names_are_escaped_and_plain_is_three_parts() -> None:
    assert next(exchange("SCRAM-SHA-512", "a=b,c", "p", "nonce")) == b"n,,n=a=3Db=2Cc,r=nonce"
    steps = exchange("PLAIN", "ada", "s\u00e9same", "")
    assert next(steps) == b"\0ada\0s\xc3\xa9same"
    with pytest.raises(StopIteration):
        steps.send(b"")


# -- ranges --------------------------------------------------------------------------------------------------------


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


# -- batches -------------------------------------------------------------------------------------------------------


def test_one_record_weighs_what_its_batch_takes() -> None:
    """Apache Kafka takes batches of 1048588 bytes unless set otherwise, and ours hold 1 MiB of weight unless set otherwise."""
    record = NewRecord(b"x", b"k" * 1000, (("h", b"v" * 300), ("h", None)), 1_700_000_000_000)
    large = NewRecord(b"x" * (2**20 - weigh(record) + 1), record.key, record.headers, record.timestamp_ms)
    assert weigh(large) == 2**20
    assert len(batch_of([large], Compression.NONE, (2**62, 0), 2**31 - 1)) <= 1048588
    many = [NewRecord(b"x" * at, None, (), 2**41 * (at % 2)) for at in range(1000)]
    assert len(batch_of(many, Compression.NONE, (2**62, 0), 0)) <= sum(map(weigh, many))


def test_what_a_server_cut_off_is_left_for_the_next_fetch() -> None:
    first = encode_batch([b"a", b"b"], base_timestamp=5, base_offset=10)
    second = encode_batch([b"c"], base_timestamp=6, base_offset=12)
    for size in range(len(first), len(first) + len(second)):
        found = fetched(("t", 0), 11, (first + second)[:size], high_watermark=13)
        assert ([(each.offset, each.value) for each in found.records], found.next_offset) == ([(11, b"b")], 12)
    assert fetched(("t", 0), 11, first + second, high_watermark=13).next_offset == 13
    for size in range(len(first)):
        assert fetched(("t", 0), 10, first[:size], high_watermark=13).next_offset == 10


def test_damaged_batches_are_never_read() -> None:
    whole = encode_batch([b"value"], base_timestamp=5)
    with pytest.raises(ProtocolError, match="CRC"):
        list(whole_batches(whole[:-1] + b"?"))
    old = bytearray(whole)
    old[16] = 1
    with pytest.raises(ProtocolError, match="magic is 1"):
        list(whole_batches(bytes(old)))
    short = bytearray(whole)
    short[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError, match="shorter than its own header"):
        list(whole_batches(bytes(short)))


def transaction(producer: int, base: int, *, commit: bool | None) -> bytes:
    if commit is None:
        return encode_batch(
            [b"%d" % producer], base_timestamp=1, base_offset=base, producer_id=producer, transactional=True
        )
    return control_batch(
        base_offset=base, leader_epoch=0, producer_id=producer, producer_epoch=0, commit=commit, timestamp_ms=1
    )


def test_of_transactions_that_were_aborted_nothing_is_seen() -> None:
    """Producers 1 and 2 interleave; 1 aborts, then commits a second transaction; somebody without one writes in between."""
    plain = encode_batch([b"plain"], base_timestamp=1, base_offset=2)
    parts: list[bytes] = []
    offsets = count()

    def add(producer: int, *, commit: bool | None = None) -> None:
        parts.append(transaction(producer, next(offsets), commit=commit))

    add(1)  # 0, aborted
    add(2)  # 1
    parts.append(plain)
    next(offsets)
    add(1)  # 3, aborted
    add(1, commit=False)  # 4
    add(1)  # 5
    add(2, commit=True)  # 6
    add(1, commit=True)  # 7
    data = b"".join(parts)
    seen = fetched(("t", 0), 0, data, high_watermark=8, aborted=[(0, 1)])
    assert [(each.offset, each.value) for each in seen.records] == [(1, b"2"), (2, b"plain"), (5, b"1")]
    assert seen.next_offset == 8
    everything = fetched(("t", 0), 0, data, high_watermark=8)
    assert [each.offset for each in everything.records] == [0, 1, 2, 3, 5]
    # A fetch that begins behind the marker of an aborted transaction is not told of it.
    assert [each.offset for each in fetched(("t", 0), 5, b"".join(parts[5:]), high_watermark=8).records] == [5]


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_made_again_is_the_very_same(compression: Compression) -> None:
    records = [NewRecord(b"v%d" % at, None, (("h", b"1"),), 1_700_000_000_000 + at) for at in range(100)]
    first = batch_of(records, compression, (7, 0), 3)
    assert first == batch_of(records, compression, (7, 0), 3)
    assert int.from_bytes(first[43:51], "big") == 7  # producer id
    assert int.from_bytes(first[53:57], "big") == 3  # base sequence
    assert int.from_bytes(first[57:61], "big") == 100
    assert first[22] & 7 == compression
    assert len(first) > HEADER_BYTES


def test_codes_without_a_name_are_failures_of_which_nothing_is_known() -> None:
    assert refused(9999).reason is Refusal.FAILED
    assert str(refused(6, "t/0")) == "kafka says 6: NOT_LEADER_OR_FOLLOWER: t/0"
