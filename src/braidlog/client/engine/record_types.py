"""Type checks at run time, for programs without a type checker."""

from braidlog.model.record import NewRecord


def check_types(topic: str, record: NewRecord) -> None:
    """Raise `TypeError` for wrong types: encoders would treat a str as base64 or crash."""
    if not isinstance(topic, str):
        raise TypeError(f"a topic name must be a str, not {_kind(topic)}")
    for what, raw in (("value", record.value), ("key", record.key)):
        if not isinstance(raw, bytes | None):
            raise TypeError(f"the {what} of a record must be bytes or None, not {_kind(raw)}")
    header: object
    for header in record.headers:
        match header:
            case (str(), bytes() | None):
                pass
            case _:
                raise TypeError(f"a header must be a pair of a str and bytes or None, not {str(header)[:80]}")
    if not isinstance(record.timestamp_ms, int | None):
        raise TypeError(f"a timestamp must be a number of milliseconds since 1970, not {_kind(record.timestamp_ms)}")


def _kind(value: object) -> str:
    return f"{type(value).__name__}; encode it: text.encode()" if isinstance(value, str) else type(value).__name__
