"""Parse form fields: text, numbers, hexadecimal digits, headers. An invalid field is an error with the field's name."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from braidlog.model.record import Header

HEADERS_MAX: Final = 100
DIGITS_MAX: Final = 18

Fields = Mapping[str, str]


class FormError(ValueError):
    """An invalid form field."""


async def fields_of(request: Request) -> dict[str, str]:
    """Return the last value of each field. The guard has limited the size of the body (`access_control.py`)."""
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
        raise FormError(f"{name} must be a number of at least {low}, not {text[:40]!r}")
    return int(text)


def raw_bytes(fields: Fields, name: str) -> bytes:
    """Return a field as bytes: text, or hexadecimal digits with `<name>-is-hex`."""
    text = fields.get(name, "")
    if f"{name}-is-hex" not in fields:
        # A text area sends CRLF line ends.
        return text.replace("\r\n", "\n").encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise FormError(f"{name}: invalid hexadecimal digits") from error


def headers_of(text: str) -> tuple[Header, ...]:
    """Parse lines of `name: value`."""
    found = []
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon or not name.strip():
            raise FormError(f"a header has the form name: value, not {line[:40]!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > HEADERS_MAX:
        raise FormError(f"the console limits a record to {HEADERS_MAX} headers")
    return tuple(found)


def text_of(fields: Fields, name: str) -> str:
    """Return a required field."""
    text = fields.get(name, "").strip()
    if not text:
        raise FormError(f"missing {name.replace('_', ' ')}")
    return text


def settings_in(text: str) -> dict[str, str]:
    """Parse lines of `name=value`."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise FormError(f"a setting has the form name=value, not {line[:40]!r}")
        found[name.strip()] = value.strip()
    return found
