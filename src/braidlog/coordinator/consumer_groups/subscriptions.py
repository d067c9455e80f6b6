"""Which topics the members of a group want: names, and patterns that names match.

Knows: names, patterns and what they found. Refuses to know: who may see which topic (it is asked), partitions.
Invariant: a pattern looks at all topics once, when it is first used; after that at each topic that comes or goes.

Patterns are RE2's: matching takes time in proportion to the name whatever the pattern is, at most a few milliseconds for a name,
since a pattern that would take more than `PATTERN_BYTES_MAX` of memory is refused.
"""

from typing import Any

from braidlog.coordinator.consumer_groups.messages import PATTERN_CHARS_MAX
from braidlog.model.errors import BrokerError, Reason

PATTERN_BYTES_MAX = 128 * 1024


class Pattern:
    """One pattern as one principal uses it, and the topics that it has found."""

    def __init__(self, text: str) -> None:
        self._regex = compile_pattern(text)
        self.topics: set[str] = set()

    def matches(self, topic: str) -> bool:
        return self._regex.fullmatch(topic) is not None


def compile_pattern(text: str) -> Any:  # noqa: ANN401 - the library has no types
    import re2  # noqa: PLC0415 - a node that nobody shows a pattern does without

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
            Reason.INVALID_PATTERN, f"topic pattern {text[:60]!r} is not one of RE2's: {_words(error)}"
        ) from error


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
