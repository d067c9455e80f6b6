"""Subscriptions of a group's members: topic names, and patterns that match names.

Invariant: a pattern is matched against all topics once, at its first use, and afterwards against each created or
deleted topic.

Patterns use RE2 syntax: matching time is linear in the name, at most a few milliseconds per name, because patterns
above `PATTERN_BYTES_MAX` of memory are rejected.
"""

from typing import Any

from braidlog.coordinator.consumer_groups.messages import PATTERN_CHARS_MAX
from braidlog.model.errors import BrokerError, Reason

PATTERN_BYTES_MAX = 128 * 1024


class Pattern:
    """One pattern of one principal, and the matching topics."""

    def __init__(self, text: str) -> None:
        self._regex = compile_pattern(text)
        self.topics: set[str] = set()

    def matches(self, topic: str) -> bool:
        return self._regex.fullmatch(topic) is not None


def compile_pattern(text: str) -> Any:  # noqa: ANN401 - the library has no types
    import re2  # noqa: PLC0415 - loaded only if a pattern is used

    if len(text) > PATTERN_CHARS_MAX:
        raise BrokerError(
            Reason.INVALID_PATTERN, f"a topic pattern has at most {PATTERN_CHARS_MAX} characters, not {len(text)}"
        )
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise BrokerError(
            Reason.INVALID_PATTERN, f"topic pattern {text[:60]!r} is not valid RE2: {_words(error)}"
        ) from error


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
