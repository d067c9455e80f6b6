"""Removes credentials from text before it is shown or stored.

Recognizes secrets in URLs, settings, log lines and PEM files. Known secrets are also found outside these patterns.
Invariant: when in doubt, text is removed.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

HIDDEN: Final = "…"
_NAMES: Final = (
    r"[\w.\-]*(?:password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w.\-]*"
)
_PATTERNS: Final = (
    # A PEM block, even if its end is missing.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # kafka://ann:word@host
    (re.compile(r"(?<=://)[^\s/@\"']+@"), f"{HIDDEN}@"),
    # Stored passwords: SCRAM-SHA-256$4096:salt$stored:server, or in Kafka's notation.
    (re.compile(r"SCRAM-SHA-\d+[$=]\S+"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=\-]{4,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\bAUTH(\s+\S+\s+)\S+"), rf"AUTH\1{HIDDEN}"),
    # password = "word", "token": "word", sasl.password=word
    (re.compile(rf"(?i)([\"']?{_NAMES}[\"']?\s*[=:]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}}\]]+)"), rf"\1{HIDDEN}"),
)
_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
KNOWN_CHARACTERS_MIN: Final = 4
"""Shorter secrets are ignored: they occur in any text."""


def without_credentials(text: str) -> str:
    """Return a URL, or text with URLs in it, without user names and passwords."""
    pattern, words = _PATTERNS[1]
    return pattern.sub(words, text)


def without_secrets_in(value: Any, known: Iterable[str] = ()) -> Any:  # noqa: ANN401 - any JSON
    """Return decoded JSON without secrets in its texts. Values under the name of a secret are hidden."""
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
    """Return text without anything that looks like a secret, and without known secrets."""
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= KNOWN_CHARACTERS_MIN:
            text = text.replace(secret, HIDDEN)
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
