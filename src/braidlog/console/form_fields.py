"""The fields of a form, as people fill them in.

Knows: text, numbers, hexadecimal digits, headers. Refuses to know: which form.
Invariant: a field that cannot be understood is told so by its name, and is never guessed at.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from braidlog.model.record import Header

HEADERS_MAX: Final = 100
DIGITS_MAX: Final = 18

Fields = Mapping[str, str]


class FormError(ValueError):
    """A field that cannot be understood."""


async def fields_of(request: Request) -> dict[str, str]:
    """The last of each. The body was measured before it was taken (`access_control.py`)."""
    try:
        body = (await request.body()).decode()
        return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True, max_num_fields=50).items()}
    except ValueError:
        return {}


def integer(fields: Fields, name: str, low: int) -> int | None:
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or len(text) > DIGITS_MAX or int(text) < low:
        raise FormError(f"{name} is a number from {low} on, not {text[:40]!r}")
    return int(text)


def raw_bytes(fields: Fields, name: str) -> bytes:
    """Text as it is; with `<name>-is-hex`, hexadecimal digits."""
    text = fields.get(name, "")
    if f"{name}-is-hex" not in fields:
        # A text area ends its lines as mail does; whoever wrote the value did not.
        return text.replace("\r\n", "\n").encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FormError(f"{name}: these are not hexadecimal digits") from error


def headers_of(text: str) -> tuple[Header, ...]:
    """`name: value` on each line."""
    found = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise FormError(f"a header is written name: value, not {line[:40]!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > HEADERS_MAX:
        raise FormError(f"a record has at most {HEADERS_MAX} headers here")
    return tuple(found)


def text_of(fields: Fields, name: str) -> str:
    """A field that has to be there."""
    text = fields.get(name, "").strip()
    if not text:
        raise FormError(f"{name.replace('_', ' ')} is missing")
    return text


def settings_in(text: str) -> dict[str, str]:
    """`name=value` on each line."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise FormError(f"a setting is written name=value, not {line[:40]!r}")
        found[name.strip()] = value.strip()
    return found
