"""Text without what proves who somebody is: before it is shown to, or kept for, somebody else.

Knows: how secrets look in URLs, settings, log lines and PEM files. Refuses to know: where the text comes from.
Invariant: it errs on the side of taking too much away. Secrets that are known are also found where they look like nothing.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

HIDDEN: Final = "…"
_NAMES: Final = (
    r"[\w.\-]*(?:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w.\-]*"
)
_PATTERNS: Final = (
    # A block of a PEM file; cut off at its end, too.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # kafka://ann:word@host
    (re.compile(r"(?<=://)[^\s/@\"']+@"), f"{HIDDEN}@"),
    # What stands for a password: SCRAM-SHA-256$4096:salt$stored:server, or in Kafka's own words.
    (re.compile(r"SCRAM-SHA-\d+[$=]\S+"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=\-]{4,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bAUTH(\s+\S+\s+)\S+"), rf"AUTH\1{HIDDEN}"),
    # password = "word", "token": "word", sasl.password=word
    (re.compile(rf"(?i)([\"']?{_NAMES}[\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}}\]]+)"), rf"\1{HIDDEN}"),
)
_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
KNOWN_CHARACTERS_MIN: Final = 4
"""Shorter words are in every text."""


def without_credentials(text: str) -> str:
    """A URL, or text with URLs in it, without who is named there."""
    pattern, words = _PATTERNS[1]
    return pattern.sub(words, text)


def without_secrets_in(value: Any, known: Iterable[str] = ()) -> Any:  # noqa: ANN401 - any JSON
    """The same of what a JSON decoder gives, with all texts in it; what stands under the name of a secret is none to be shown."""
    if isinstance(value, dict):
        return {
            without_secrets(name, known): HIDDEN
            if isinstance(inner, str) and _NAME.fullmatch(name)
            else without_secrets_in(inner, known)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets_in(inner, known) for inner in value]
    return without_secrets(value, known) if isinstance(value, str) else value


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """Without what looks like a secret, and without those that are known."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= KNOWN_CHARACTERS_MIN:
            text = text.replace(secret, HIDDEN)
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
