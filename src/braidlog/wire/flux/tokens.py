"""The words of a flux line: reads and writes integers, names, choices, lists, base64.

Invariant: `read` returns what `write` wrote. Written words contain no blank outside brackets. An invalid word raises
a `ProtocolError` whose message may be sent to the peer.
"""

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from braidlog.codec.errors import ProtocolError
from braidlog.model.limits import NAME_CHARS_MAX

I32_MAX = 2**31 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1
_INTEGER_CHARS_MAX = 20

KEY_BYTES_MAX = 16 * 1024
"""Maximum bytes of a key: hashing takes time per byte, about a millisecond for this size."""

NULL = b"-"
"""A null key or value in `enc=b64`. No base64 text has one character, so it is unambiguous."""


class Kind(msgspec.Struct, frozen=True):
    """One kind of word. `shape` is its notation in the documentation."""

    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    shape: str


def shown(word: bytes) -> str:
    """Quote a peer's word in an error message: printable, and short."""
    return repr(word[:40].decode("utf-8", "replace"))


def _read_integer(word: bytes) -> int:
    # int() also accepts underscores, blanks and digits of other scripts.
    digits = word[1:] if word[:1] in (b"-", b"+") else word
    if not digits.isdigit() or len(word) > _INTEGER_CHARS_MAX:
        raise ProtocolError(f"{shown(word)} is not an integer")
    return int(word)


def integer(low: int, high: int, shape: str = "N") -> Kind:
    """A decimal integer from `low` to `high`, both inclusive."""

    def checked(value: int) -> int:
        if not low <= value <= high:
            raise ProtocolError(f"{value} is not in the range {low}..{high}")
        return value

    return Kind(lambda word: checked(_read_integer(word)), lambda value: b"%d" % checked(value), shape)


def name(chars_max: int = NAME_CHARS_MAX) -> Kind:
    """A word of text without blanks. Which characters a topic may have is the broker's rule, the same for every
    listener.
    """

    def checked(text: str) -> str:
        if not 1 <= len(text) <= chars_max:
            raise ProtocolError(f"a name must have 1 to {chars_max} characters, this one has {len(text)}")
        if " " in text or not text.isprintable():  # the answer separates it by blanks
            raise ProtocolError("a name cannot contain blanks or control characters")
        return text

    def read(word: bytes) -> str:
        try:
            text = word.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{shown(word)} is not UTF-8") from error
        return checked(text)

    return Kind(read, lambda text: checked(text).encode("utf-8"), "name")


def choice(*words: StrEnum) -> Kind:
    """One of several words, spelled exactly (the protocol document: "must be exactly")."""
    by_word = {word.encode(): word for word in words}
    shape = "|".join(words)

    def read(word: bytes) -> StrEnum:
        if (found := by_word.get(word)) is None:
            raise ProtocolError(f"{shown(word)} is not one of {shape}")
        return found

    def write(word: StrEnum) -> bytes:
        if word not in words:
            raise ValueError(f"{word!r} is not one of {shape}")
        return word.encode()

    return Kind(read, write, shape)


def constant(word: bytes) -> Kind:
    """A constant word without a field in the message."""

    def read(found: bytes) -> None:
        if found != word:
            raise ProtocolError(f"{shown(found)} is not the expected {word.decode()}")

    return Kind(read, lambda _: word, word.decode())


def bracketed(item: Kind) -> Kind:
    """A list in an answer: `[0 1 2]`, `[]` (the Flux page, §2: lists are separated by blanks)."""

    def read(word: bytes) -> tuple[Any, ...]:
        if word[:1] != b"[" or word[-1:] != b"]":
            raise ProtocolError(f"{shown(word)} is not a list in brackets")
        return tuple(map(item.read, word[1:-1].split()))

    def write(items: tuple[Any, ...]) -> bytes:
        text = b" ".join(map(item.write, items))
        if b"[" in text or b"]" in text:
            raise ValueError("an item of a list cannot contain brackets")
        return b"[" + text + b"]"

    return Kind(read, write, f"[{item.shape} …]")


def comma_separated(item: Kind, count_max: int) -> Kind:
    """A list in a request: `1,0`; at least one item."""

    def read(word: bytes) -> tuple[Any, ...]:
        if word.count(b",") >= count_max:
            raise ProtocolError(f"a list may have at most {count_max} items")
        return tuple(map(item.read, word.split(b",")))

    def write(items: tuple[Any, ...]) -> bytes:
        if not 1 <= len(items) <= count_max:
            raise ValueError(f"a list must have 1 to {count_max} items, this one has {len(items)}")
        return b",".join(map(item.write, items))

    return Kind(read, write, f"{item.shape},…")


def _read_truth(word: bytes) -> bool:
    if word not in (b"true", b"false"):
        raise ProtocolError(f"{shown(word)} must be true or false")
    return word == b"true"


TRUTH = Kind(_read_truth, lambda value: b"true" if value else b"false", "true|false")


def read_base64(word: bytes) -> bytes | None:
    """Decode padded standard base64, or `-` for null."""
    if word == NULL:
        return None
    try:
        return a2b_base64(word, strict_mode=True)
    except Base64Error as error:
        raise ProtocolError(f"{shown(word)} is not base64 (standard alphabet, padded)") from error


def write_base64(data: bytes | None) -> bytes:
    return NULL if data is None else b2a_base64(data, newline=False)


def read_pair(word: bytes, *, base64: bool) -> tuple[bytes | None, bytes | None]:
    """Split `<key>:<value>`: the key is the text before the first colon (the Flux page, §2); base64 contains none."""
    key, colon, value = word.partition(b":")
    if not colon:
        raise ProtocolError("the message must be key:value")
    pair = (read_base64(key), read_base64(value)) if base64 else (key, value)
    if pair[0] is not None and len(pair[0]) > KEY_BYTES_MAX:
        raise ProtocolError(f"a key may have at most {KEY_BYTES_MAX} bytes, this one has {len(pair[0])}")
    return pair


def write_pair(key: bytes | None, value: bytes | None, *, base64: bool) -> bytes:
    """Return the word that `read_pair` reads. Raises ValueError for values that plain text cannot express."""
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise ValueError(f"a key may have at most {KEY_BYTES_MAX} bytes, this one has {len(key)}")
    if base64:
        return write_base64(key) + b":" + write_base64(value)
    if key is None or value is None:
        raise ValueError("plain text cannot express a null key or value: use enc=b64")
    word = key + b":" + value
    if b":" in key or word.split(None, 1) != [word]:
        raise ValueError("plain text cannot express a colon in a key, or blanks: use enc=b64")
    return word


def _read_pair_word(word: bytes) -> bytes:
    return word


PAIR = Kind(_read_pair_word, _read_pair_word, "<key>:<value>")
"""Keep the word unparsed: the options after it determine its encoding."""
