"""What values begin with, found by both twins alike, and as one who walks the records finds it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.codec.twins import load_plain, outcome

from braidlog.codec.batch import schema_ids as compiled
from braidlog.codec.batch.records import encode_batch

PLAIN = load_plain("codec/batch/schema_ids")
HEADS = st.sampled_from([b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0\xff\xff\xff\xff", b"\0\0\0\0", b"\1\0\0\0\1", b""])
VALUES = st.lists(st.none() | st.builds(bytes.__add__, HEADS, st.binary(max_size=5)), min_size=1, max_size=30)


def section_of(values: list[bytes | None]) -> bytes:
    return encode_batch(values, base_timestamp=0)[61:]


@given(VALUES)
def test_both_twins_find_what_a_walk_finds(values: list[bytes | None]) -> None:
    asked: Any = (section_of(values), len(values), len(values) - 1, 0)
    ids = {int.from_bytes(each[1:5], "big") for each in values if each and len(each) >= 5 and each[0] == 0}
    bad = [at for at, each in enumerate(values) if each is not None and not (len(each) >= 5 and each[0] == 0)]
    assert compiled.schema_ids(*asked) == PLAIN.schema_ids(*asked) == (ids, bad[0] if bad else -1)


@given(st.integers(0, 60), st.integers(0, 255))
def test_both_twins_refuse_the_same_sections(at: int, byte: int) -> None:
    section = bytearray(section_of([b"\0\0\0\0\1abc", None, b"\0\0\0\0\2"]))
    section[at % len(section)] = byte
    asked: Any = (bytes(section), 3, 2, 0)
    assert outcome(lambda: compiled.schema_ids(*asked)) == outcome(lambda: PLAIN.schema_ids(*asked))
