"""Print JSON values as YAML in block style, with plain scalars only where every reader parses them as text.

Readers of YAML 1.1 and 1.2 get the same value. Does not handle anchors, tags or other styles.
"""

import json
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*(?: [\w./()-]+)*", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
"""Words that YAML 1.1 does not parse as text."""


def yaml_of(value: Any) -> str:  # noqa: ANN401 - any JSON
    """Return a JSON value as a YAML document."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict) and value:
        return [line for name, inner in value.items() for line in _entry(_scalar(name), inner)]
    if isinstance(value, list) and value:
        return [line for inner in value for line in _hung("- ", _lines(inner))]
    return [_scalar(value)]


def _entry(name: str, value: Any) -> list[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict | list) and value:
        return [f"{name}:", *(f"  {line}" for line in _lines(value))]
    return [f"{name}: {_scalar(value)}"]


def _hung(mark: str, lines: list[str]) -> list[str]:
    return [f"{mark if not at else '  '}{line}" for at, line in enumerate(lines)]


def _scalar(value: Any) -> str:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else _quoted(value)
    if isinstance(value, float):
        text = repr(value)  # 1e-05 is text to readers of YAML 1.1, 1.0e-05 is not
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
