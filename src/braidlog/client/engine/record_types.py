"""What a type checker would have found, for programs that have none."""

from braidlog.model.record import NewRecord


def check_types(topic: str, record: NewRecord) -> None:
    """`TypeError` for what only a type checker would have found: a text is some encoder's base64, and another's crash."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic is named by a str, not by {_kind(topic)}")
    for what, raw in (("value", record.value), ("key", record.key)):
        if not isinstance(raw, bytes | None):
            raise TypeError(f"the {what} of a record is bytes or None, not {_kind(raw)}")
    header: object
    for header in record.headers:
        match header:
            case (str(), bytes() | None):
                pass
            case _:
                raise TypeError(f"a header is a pair of a str and bytes or None, not {str(header)[:80]}")
    if not isinstance(record.timestamp_ms, int | None):
        raise TypeError(f"a time is a number of milliseconds since 1970, not {_kind(record.timestamp_ms)}")


def _kind(value: object) -> str:
    return f"{type(value).__name__}; encode it: text.encode()" if isinstance(value, str) else type(value).__name__
