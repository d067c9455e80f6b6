"""Conversations, seen from beside: the same messages however the bytes were cut, faults where they are, no secret anywhere."""

import gzip
import random
import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from tests.wire.kafka import vectors as kafka_vectors
from tests.wire.mayfly import vectors as mayfly_vectors

from braidlog.tools.wire.annotated_hex import encode, parse, words_of
from braidlog.tools.wire.capture.message_format import Moment, json_of, text_of
from braidlog.tools.wire.capture.observed_connection import Watcher
from braidlog.tools.wire.capture.observed_message import Seen
from braidlog.tools.wire.capture.pcapng import Address
from braidlog.tools.wire.capture.recorder import Recorder, RecorderSettings
from braidlog.wire.dialect import dialects
from braidlog.wire.observer import Side

C, S = Side.CLIENT, Side.SERVER
Talk = Sequence[tuple[Side, bytes]]


def raw(text: str) -> bytes:
    return encode(parse(words_of(text, 1)), {})


def watch(dialect: str, talk: Talk) -> list[Seen]:
    watcher = Watcher(dialect)
    return [seen for side, data in talk for seen in watcher.feed(side, data)]


# One question and its answer in each dialect: bytes of the protocol document, or of a foreign client (the vectors' sources).
TALKS_OF_TWO: dict[str, Talk] = {
    "mlog": [
        (C, raw('0002 LEN `{"Topic":"orders","Value":"aGVsbG8=","Acks":1}`')),
        (S, raw('0003 LEN `{"Offset":41}`')),
    ],
    "flux": [
        (C, b"V1|42|PRODUCE|orders user1:created\n"),
        (S, b"V1|42|OK|partition=2 offset=0 hw=0\n"),
    ],
    "cursus": [
        (C, raw('LEN "CREATE orders 4"')),
        (S, raw('LEN "OK topic=orders partitions=4 cleanup_policy=delete"')),
    ],
    "rustlog": [
        (C, raw('0000004E `{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}`')),
        (S, raw('LEN `{"type":"ProduceResponse","base_offset":7,"record_count":1}`')),
    ],
    "mayfly": [
        (C, raw("CA FE 01 02 u32 9 u32 len [ u16 len [ `foo` ] ]")),
        (S, raw("CA FE 01 01 u32 9 u32 len [ u32 len [ `bar` ] ]")),
    ],
    "kafka": [
        (C, raw("LEN i16 10 i16 0 i32 7 i16 len [ `me` ] i16 len [ `group` ]")),
        (S, raw("LEN i32 7 i16 0 i32 3 i16 len [ `host` ] i32 9092")),
    ],
}

SEEN: dict[str, list[tuple[str, dict[str, object]]]] = {
    "mlog": [("Produce", {"Topic": "orders", "Value": b"hello", "Acks": 1}), ("ProduceResp", {"Offset": 41})],
    "flux": [
        (
            "PRODUCE",
            {"topic": "orders", "key": b"user1", "value": b"created", "acks": "1", "enc": "plain"},
        ),
        ("OK", {"partition": 2, "offset": 0, "hw": 0}),
    ],
    "cursus": [
        ("CREATE", {"topic": "orders", "partitions": 4}),
        ("Created", {"topic": "orders", "partitions": 4, "cleanup_policy": "delete"}),
    ],
    "rustlog": [
        ("Produce", {"topic": "logs", "partition": 0, "records": [b"Hello World"]}),
        ("ProduceResponse", {"base_offset": 7, "record_count": 1}),
    ],
    "mayfly": [("GET", {"key": b"foo"}), ("OK", {"value": b"bar"})],
    "kafka": [
        ("FindCoordinator", {"key": "group"}),
        ("FindCoordinator", {"error_code": 0, "node_id": 3, "host": "host", "port": 9092}),
    ],
}


def test_every_dialect_is_here() -> None:
    assert set(TALKS_OF_TWO) == set(SEEN) == set(dialects())


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_a_question_and_its_answer(dialect: str) -> None:
    found = watch(dialect, TALKS_OF_TWO[dialect])
    assert [seen.side for seen in found] == [C, S]
    assert [seen.fault for seen in found] == [None, None]
    assert [seen.data for seen in found] == [data for _, data in TALKS_OF_TWO[dialect]]
    for seen, (name, fields) in zip(found, SEEN[dialect], strict=True):
        assert seen.name == name
        assert {key: seen.fields[key] for key in fields} == fields


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_cutting_the_bytes_changes_nothing(dialect: str) -> None:
    whole = watch(dialect, TALKS_OF_TWO[dialect])
    one_by_one = [(side, data[at : at + 1]) for side, data in TALKS_OF_TWO[dialect] for at in range(len(data))]
    assert watch(dialect, one_by_one) == whole
    chance = random.Random(7)
    for _ in range(20):
        pieces: list[tuple[Side, bytes]] = []
        for side, data in TALKS_OF_TWO[dialect]:
            cut = chance.randrange(len(data) + 1)
            pieces += [(side, data[:cut]), (side, data[cut:])]
        assert watch(dialect, pieces) == whole


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_damaged_bytes_are_seen_and_never_raise(dialect: str) -> None:
    chance = random.Random(11)
    for _ in range(400):
        watcher = Watcher(dialect)
        shown = 0
        for side, data in TALKS_OF_TWO[dialect]:
            damaged = bytearray(data)
            for _ in range(chance.randint(1, 3)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            shown += sum(seen.size for seen in watcher.feed(side, bytes(damaged)))
            shown += sum(seen.size for seen in watcher.end(side))
        assert shown <= sum(len(data) for _, data in TALKS_OF_TWO[dialect])


@pytest.mark.parametrize("vector", mayfly_vectors.REQUESTS, ids=lambda vector: vector.name)
def test_mayfly_vectors(vector: mayfly_vectors.Vector) -> None:
    (seen,) = watch("mayfly", [(C, vector.data)])
    assert seen.fault is None
    assert seen.head["ReqID"] == vector.request.id


@pytest.mark.parametrize("vector", kafka_vectors.load("requests"), ids=lambda vector: vector.name)
def test_kafka_vectors(vector: kafka_vectors.Vector) -> None:
    (seen,) = watch("kafka", [(C, vector.data)])
    assert seen.fault is None
    assert seen.name == type(vector.message).__name__.removesuffix("Request")


def test_the_documents_misprint_is_pointed_at() -> None:
    """The Mayfly document prints AUTH "secrettoken" with lengths 0x0C and 0x0A: the last letter is where a frame should begin."""
    printed = raw("CA FE 01 00 u32 1 0000000C 000A `secrettoken`")
    auth, rest = watch("mayfly", [(C, printed)])
    assert (auth.name, auth.fault) == ("AUTH", None)
    assert rest.fault is not None
    assert rest.position + (rest.fault.position or 0) == 24
    assert b"n" not in rest.data


FAULTS = [
    # dialect, who, bytes, what is said, where
    ("mayfly", C, "CB FE 01", "expected CA of the magic CAFE", 0),
    ("mayfly", C, "CA FF", "expected FE of the magic CAFE", 1),
    ("mayfly", C, "CA FE 07", "expected 1 or 2", 2),
    ("mayfly", S, "CA FE 02", "expected 1", 2),
    ("mayfly", C, "CA FE 01 4F u32 1 u32 0", "unknown command 0x4F", 3),
    ("mayfly", C, "CA FE 01 01 u32 1 u32 len [ u16 9 `foo` ]", "key announces 9 bytes, 3 are left", 14),
    ("mayfly", C, "CA FE 01 02 u32 1 u32 0xFFFFFFFF", "announces 4294967295 bytes", 8),
    ("mayfly", C, "CA FE 02 04 u32 1 u32 0 09", "9 is not a consistency", 12),
    ("mlog", C, "0063 u32 0", "unknown message type 99", 0),
    ("mlog", C, "0003 LEN `{}`", "ProduceResp is not sent by a client", 0),
    ("mlog", C, "0002 u32 0x7FFFFFFF", "announces 2147483647 bytes", 2),
    ("mlog", C, '0002 LEN `{"Topic":"a","Acks":"x"}`', "Expected `int`", 6 + 20),
    ("mlog", C, '0002 LEN `{"Topic":!}`', "malformed", 6 + 9),
    ("mlog", C, '0004 LEN `{"Values":["YQ==",7]}`', "Expected", 6 + 18),
    ("rustlog", C, 'LEN `{"type":"Fetch","group_id":"","topic":7}`', "Expected `str`", 4 + 38),
    ("rustlog", C, 'LEN `{"type":`', "truncated", 4 + 8),
    ("rustlog", C, "LEN `[1]`", "not an object", 4),
    ("rustlog", C, "LEN", "a frame is empty", 0),
    ("rustlog", C, "LEN 02 0001 `g` 0009 `t`", "topic announces 9 bytes, 1 are left", 4 + 6),
    ("rustlog", S, "LEN 77", "malformed", 4),
    ("cursus", C, "LEN `NO_SUCH thing`", "unknown_command", 4),
    ("cursus", C, "LEN `CONSUME topic=a partition=x offset=0`", "invalid_partition", 4 + 26),
    ("cursus", C, "LEN `CONSUME topic=a partition=0`", "missing_offset", 4 + 27),
    ("cursus", C, "LEN 0000 `CONSUME topic=a partition=x offset=0`", "invalid_partition", 4 + 2 + 26),
    ("cursus", C, "LEN BA7C 0001 `t` 0007", "u16", None),
    ("cursus", C, "u32 0x7FFFFFFF", "announces 2147483647 bytes", 0),
    ("flux", C, '"V2|1|PING|\\n"', "protocol version must be V1", 0),
    ("flux", C, '"V1||PING|\\n"', "a correlation id must have 1 to 256 bytes", 3),
    ("flux", C, '"V1|1|NOPE|\\n"', "unsupported command", 5),
    ("flux", C, '"V1|1|CONSUME|orders x 0\\n"', "CONSUME: partition", 20),
    ("flux", C, '"V1|1|CONSUME|orders\\n"', "CONSUME requires", 19),
    ("flux", C, '"hello\\n"', "four fields separated by bars", 5),
    ("flux", C, "16 03 01", "which is not text", 0),
    ("kafka", C, "LEN i16 999 i16 0 i32 1 i16 -1", "API 999 is not served", 4),
    ("kafka", C, "LEN i16 3 i16 99 i32 1 i16 -1", "Metadata is not served in version 99", 6),
    ("kafka", C, "LEN i16 10 i16 0 i32 1 i16 -1 i16 9 `abc`", "key announces 9 bytes", 4 + 12),
    ("kafka", C, "LEN i16 10 i16 0 i32 1 i16 -1", "is truncated after 10 bytes", 4 + 10),
    ("kafka", C, "LEN i16 10 i16 0 i32 1 i16 -1 i16 2 FF FE", "not UTF-8", 4 + 12),
    ("kafka", S, "LEN i32 5", "whose request was not captured", 4),
]


@pytest.mark.parametrize(("dialect", "side", "text", "said", "position"), FAULTS)
def test_the_first_wrong_byte(dialect: str, side: Side, text: str, said: str, position: int | None) -> None:
    seen = watch(dialect, [(side, raw(text))])[0]
    assert seen.fault is not None
    if position is None:
        assert seen.fault.position is not None
        return
    assert said in seen.fault.message
    assert seen.fault.position == position


@pytest.mark.parametrize("dialect", sorted(dialects()))
def test_what_is_cut_off_is_told(dialect: str) -> None:
    data = TALKS_OF_TWO[dialect][0][1]
    watcher = Watcher(dialect)
    assert list(watcher.feed(C, data[:-1])) == []
    (seen,) = watcher.end(C)
    assert seen.fault is not None
    assert f"truncated after {len(data) - 1} bytes" in seen.fault.message


def test_a_frame_that_is_too_large_is_passed_over() -> None:
    large = raw('LEN `{"type":"Ping"}`')
    big = struct.pack(">I", 1000) + b"x" * 1000
    watcher = Watcher("rustlog", keep_bytes_max=100)
    found = [seen for data in (big[:500], big[500:] + large) for seen in watcher.feed(C, data)]
    assert [seen.name for seen in found] == ["?", "Ping"]
    assert found[0].size == 1004
    assert found[0].fault is not None
    assert found[1].position == 1004


# -- secrets ---------------------------------------------------------------------------------------------------

TOKEN = b"s3cr3t-T0k3n"
T = TOKEN.decode()

SECRETS: dict[str, tuple[str, Talk]] = {
    **{
        f"preamble of {dialect}": (dialect, [(C, b"AUTH bob " + TOKEN + b"\n" + question), (S, answer)])
        for dialect, ((_, question), (_, answer)) in TALKS_OF_TWO.items()
    },
    "preamble, cut off": ("mlog", [(C, b"AUTH bob " + TOKEN)]),
    "preamble, wrong": ("mlog", [(C, b"AUTH bob is " + TOKEN + b"\n")]),
    "preamble, too long": ("mlog", [(C, b"AUTH " + TOKEN * 200)]),
    "preamble, principal like the token": ("flux", [(C, b"AUTH bob " + TOKEN + b"\n")]),
    "mayfly AUTH": ("mayfly", [(C, raw(f"CA FE 01 00 u32 1 u32 len [ u16 len [ `{T}` ] ]"))]),
    "mayfly AUTH, version 2": ("mayfly", [(C, raw(f"CA FE 02 00 u32 1 u32 14 02 u16 len [ `{T}` ]"))]),
    "mayfly AUTH, its length wrong": ("mayfly", [(C, raw(f"CA FE 01 00 u32 1 u32 len [ u16 99 `{T}` ]"))]),
    "mayfly AUTH, the rest is no frame": ("mayfly", [(C, raw(f"CA FE 01 00 u32 1 u32 3 u16 1 `{T}`")), (C, TOKEN)]),
    "mayfly AUTH, cut off": ("mayfly", [(C, raw(f"CA FE 01 00 u32 1 u32 99 u16 97 `{T}`"))]),
    "cursus AUTH": ("cursus", [(C, raw(f"LEN `AUTH principal=bob token={T}`"))]),
    "cursus AUTH in an envelope": ("cursus", [(C, raw(f"LEN 0000 `AUTH principal=bob token={T}`"))]),
    "cursus AUTH, compressed": (
        "cursus",
        [(C, raw(f"LEN {gzip.compress(b'AUTH principal=bob token=' + TOKEN).hex()}"))],
    ),
    "cursus AUTH, refused": ("cursus", [(C, raw(f"LEN `AUTH principal=bob token={T} token={T}`"))]),
    "cursus AUTH, misspelt": ("cursus", [(C, raw(f"LEN `AUTHENTICATE bob {T}`"))]),
    "cursus credentials": ("cursus", [(C, raw(f"LEN `DELETE topic=t principal=bob auth_token={T}`"))]),
    "cursus credentials, refused": ("cursus", [(C, raw(f"LEN `DELETE principal=bob auth_token={T}`"))]),
    "kafka SaslAuthenticate": ("kafka", [(C, raw(f"LEN i16 36 i16 0 i32 1 i16 -1 i32 len [ 00 `bob` 00 `{T}` ]"))]),
    "kafka SaslAuthenticate, flexible": (
        "kafka",
        [(C, raw(f"LEN i16 36 i16 2 i32 1 i16 -1 00 uvarint len+1 [ 00 `bob` 00 `{T}` ] 00"))],
    ),
    "kafka SaslAuthenticate, its length wrong": (
        "kafka",
        [(C, raw(f"LEN i16 36 i16 0 i32 1 i16 -1 i32 999 00 `bob` 00 `{T}`"))],
    ),
    "kafka SaslAuthenticate, answered": (
        "kafka",
        [
            (C, raw("LEN i16 36 i16 0 i32 1 i16 -1 i32 len [ `n,,n=bob` ]")),
            (S, raw(f"LEN i32 1 i16 0 i16 -1 i32 len [ `v={T}` ]")),
        ],
    ),
    "kafka bare tokens": (
        "kafka",
        [
            (C, raw("LEN i16 17 i16 0 i32 1 i16 -1 i16 len [ `PLAIN` ]")),
            (S, raw("LEN i32 1 i16 0 i32 1 i16 len [ `PLAIN` ]")),
            (C, raw(f"LEN 00 `bob` 00 `{T}`")),
            (S, raw(f"LEN `{T}`")),
        ],
    ),
    "kafka scram credentials": (
        "kafka",
        [
            (
                C,
                raw(
                    f"LEN i16 51 i16 0 i32 1 i16 -1 00 uvarint 1 uvarint 2 uvarint len+1 [ `bob` ] 01 i32 4096 "
                    f"uvarint len+1 [ `{T}` ] uvarint len+1 [ `{T}-salted` ] 00 00"
                ),
            )
        ],
    ),
    "kafka, an answer to nobody": ("kafka", [(S, raw(f"LEN i32 9 i16 0 i16 -1 i32 len [ `v={T}` ]"))]),
}


@pytest.mark.parametrize("what", SECRETS)
def test_no_secret_is_shown(what: str, tmp_path: Path) -> None:
    dialect, talk = SECRETS[what]
    watcher = Watcher(dialect)
    found = [seen for side, data in talk for seen in watcher.feed(side, data)]
    found += [seen for side in Side for seen in watcher.end(side)]
    assert sum(seen.size for seen in found) == sum(len(data) for _, data in talk)
    assert any(seen.hidden for seen in found)
    moment = Moment(0, dialect, "c1")
    shown = BytesIO()
    for seen in found:
        shown.write(text_of(moment, seen, with_bytes=True).encode())
        shown.write(json_of(moment, seen, with_bytes=True))
        shown.write(seen.data)
    _no_secret(shown.getvalue())
    # And through the writer of logs and captures, cut in the middle of everything.
    for form in ("text", "json"):
        log, capture = tmp_path / form, tmp_path / f"{form}.pcapng"
        recorder = Recorder(RecorderSettings(str(log), form, with_bytes=True, capture_path=str(capture)), lambda: 0)
        number = recorder.opened(dialect, Address("127.0.0.1", 50_000), Address("127.0.0.1", 9000))
        for side, data in talk:
            for at in range(0, len(data), 5):
                recorder.spoke(number, side, data[at : at + 5])
        recorder.closed(number)
        recorder.close()
        assert log.stat().st_size
        _no_secret(log.read_bytes())
        _no_secret(capture.read_bytes())


def _no_secret(shown: bytes) -> None:
    for form in (TOKEN, TOKEN.hex().encode(), TOKEN.hex(" ").upper().encode(), TOKEN.hex(" ").encode()):
        assert form not in shown
    # Not the half of it, either.
    assert TOKEN[:6] not in shown
    assert TOKEN[6:] not in shown


def test_declared_secrets_exist() -> None:
    """A name in a dialect's table that no message has would guard nothing."""
    for dialect in dialects():
        for kind, names in dialects()[dialect].secrets.items():
            assert set(names) <= set(kind.__struct_fields__), (dialect, kind)  # type: ignore[attr-defined]


def test_bare_tokens_are_known_until_requests_follow() -> None:
    _, talk = SECRETS["kafka bare tokens"]
    found = watch("kafka", [*talk, *TALKS_OF_TWO["kafka"]])
    assert [seen.name for seen in found[2:]] == ["SaslToken", "SaslToken", "FindCoordinator", "FindCoordinator"]
    assert all(seen.fault is None for seen in found)
