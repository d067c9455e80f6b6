"""Record filters: expressions over key, value, headers and fields of JSON values.

An expression is parsed once, is bounded, and cannot loop. A comparison with a missing field does not match. No record
content can make a filter raise.

    value.total > 10 and (key == "c-1" or headers.kind begins "refund") and not value.items[0].gift

    or        = and ("or" and)*
    and       = not ("and" not)*
    not       = "not" not | "(" or ")" | operand [operator literal]
    operand   = "key" | "value" path | "headers" "." name | "partition" | "offset" | "time"
    path      = ("." name | "[" number "]")*
    operator  = "==" "!=" "<" "<=" ">" ">=" "contains" "begins" "ends"
    literal   = "text" | 'text' | number | true | false | null
"""

import operator
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from braidlog.client.drivers.contract import ConsumedRecord

CHARS_MAX: Final = 1_000
DEPTH_MAX: Final = 30
JSON_BYTES_MAX: Final = 1024 * 1024
"""Longer values are not parsed."""

Test = Callable[[ConsumedRecord], bool]
Operand = Callable[[ConsumedRecord], Any]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>-?\d+(?:\.\d+)?(?![\w.]))"""
    r"""|(?P<operator>==|!=|<=|>=|<|>)|(?P<mark>[()\[\].])|(?P<word>[^\W\d][\w-]*)|(?P<digits>\d+))"""
)
_WORDS: Final = {"true": True, "false": False, "null": None}
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT: Final[dict[str, Callable[[str, str], bool]]] = {
    "contains": lambda found, wanted: wanted in found,
    "begins": str.startswith,
    "ends": str.endswith,
}


class FilterError(ValueError):
    """An invalid expression."""


class _Missing:
    """Marks a missing field."""


_MISSING: Final = _Missing()


def parse_filter(text: str) -> Test:
    """Compile an expression to a test of records. Raises `FilterError` with the position of a mistake."""
    if len(text) > CHARS_MAX:
        raise FilterError(f"a filter has at most {CHARS_MAX} characters")
    parser = _Parser(text)
    test = parser.either(0)
    parser.end()
    return test


class _Parser:
    """Recursive descent parser."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise FilterError(f"unexpected {text[at:].strip()[:20]!r} at character {at + 1}")
            kind = found.lastgroup or ""
            self._tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self._at = 0

    @property
    def _next(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end", -1)

    def _take(self, *wanted: str) -> str | None:
        """Consume and return the next token if it is one of `wanted`."""
        kind, text, _ = self._next
        if kind in ("word", "mark", "operator") and text in wanted:
            self._at += 1
            return text
        return None

    def _expected(self, what: str) -> FilterError:
        _, text, at = self._next
        return FilterError(f"expected {what} {f'at character {at + 1}, not {text!r}' if at >= 0 else 'at the end'}")

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._expected("and, or, or the end")

    # -- grammar ---------------------------------------------------------------------------------------------

    def either(self, depth: int) -> Test:
        tests = [self._both(depth)]
        while self._take("or"):
            tests.append(self._both(depth))
        return tests[0] if len(tests) == 1 else lambda record: any(test(record) for test in tests)

    def _both(self, depth: int) -> Test:
        tests = [self._not(depth)]
        while self._take("and"):
            tests.append(self._not(depth))
        return tests[0] if len(tests) == 1 else lambda record: all(test(record) for test in tests)

    def _not(self, depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise FilterError(f"a filter is nested at most {DEPTH_MAX} deep")
        if self._take("not"):
            refused = self._not(depth + 1)
            return lambda record: not refused(record)
        if self._take("("):
            test = self.either(depth + 1)
            if not self._take(")"):
                raise self._expected("a closing bracket")
            return test
        return self._comparison()

    def _comparison(self) -> Test:
        operand = self._operand()
        sign = self._take("==", "!=", *_ORDER, *_TEXT)
        if sign is None:
            return lambda record: operand(record) not in (_MISSING, None, False)
        wanted = self._literal()
        if sign in _TEXT:
            if not isinstance(wanted, str):
                raise FilterError(f'{sign} needs a text, such as "abc"')
            return _text_test(operand, _TEXT[sign], wanted)
        if sign in _ORDER:
            return _order_test(operand, _ORDER[sign], wanted)
        if sign == "!=":
            return lambda record: (found := operand(record)) is not _MISSING and not _equal(found, wanted)
        return lambda record: _equal(operand(record), wanted)

    def _literal(self) -> Any:  # noqa: ANN401 - a text, a number, or a word
        kind, text, _ = self._next
        if kind in ("text", "number", "digits") or text in _WORDS:
            self._at += 1
            if kind == "text":
                return re.sub(r"\\(.)", r"\1", text[1:-1])
            return _WORDS[text] if kind == "word" else float(text) if "." in text else int(text)
        raise self._expected('a value ("text", a number, true, false or null)')

    def _operand(self) -> Operand:
        name = self._take("key", "value", "headers", "partition", "offset", "time")
        if name is None:
            raise self._expected("key, value, headers.NAME, partition, offset or time")
        if name == "headers":
            if not self._take("."):
                raise self._expected("headers.NAME: a dot")
            return _header(self._name())
        if name == "value":
            steps = self._path()
            return _value(steps) if steps else lambda record: _letters(record.value)
        return _PLAIN[name]

    def _name(self) -> str:
        kind, text, _ = self._next
        if kind not in ("word", "text", "digits", "number"):
            raise self._expected("a name")
        self._at += 1
        return text[1:-1] if kind == "text" else text

    def _path(self) -> list[str | int]:
        steps: list[str | int] = []
        while mark := self._take(".", "["):
            if mark == ".":
                steps.append(self._name())
                continue
            kind, text, _ = self._next
            if kind not in ("number", "digits") or not text.isdecimal():
                raise self._expected("the number of an item")
            self._at += 1
            steps.append(int(text))
            if not self._take("]"):
                raise self._expected("]")
        return steps


# -- fields of a record --------------------------------------------------------------------------------------------


def _letters(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


_PLAIN: Final[dict[str, Operand]] = {
    "key": lambda record: _letters(record.key),
    "partition": lambda record: record.partition,
    "offset": lambda record: record.offset,
    "time": lambda record: record.timestamp_ms,
}


def _header(name: str) -> Operand:
    return lambda record: next((_letters(value) for each, value in record.headers if each == name), _MISSING)


def _value(steps: list[str | int]) -> Operand:
    def find(record: ConsumedRecord) -> Any:  # noqa: ANN401 - any JSON value
        if record.value is None or len(record.value) > JSON_BYTES_MAX:
            return _MISSING
        try:
            found = msgspec.json.decode(record.value)
        except (msgspec.DecodeError, RecursionError):
            return _MISSING
        for step in steps:
            found = _inside(found, step)
        return found

    return find


def _inside(found: Any, step: str | int) -> Any:  # noqa: ANN401 - what JSON holds
    if isinstance(found, list):
        return found[step] if isinstance(step, int) and step < len(found) else _MISSING
    return found.get(step, _MISSING) if isinstance(found, dict) else _MISSING


def _equal(found: Any, wanted: Any) -> bool:  # noqa: ANN401 - what JSON holds
    """Compare values; unlike in Python, true does not equal 1."""
    return found is not _MISSING and isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _order_test(operand: Operand, order: Callable[[Any, Any], bool], wanted: Any) -> Test:  # noqa: ANN401
    kinds = str if isinstance(wanted, str) else int | float

    def test(record: ConsumedRecord) -> bool:
        found = operand(record)
        return isinstance(found, kinds) and not isinstance(found, bool) and order(found, wanted)

    if wanted is None or isinstance(wanted, bool):
        raise FilterError("order comparisons need texts or numbers")
    return test


def _text_test(operand: Operand, holds: Callable[[str, str], bool], wanted: str) -> Test:
    def test(record: ConsumedRecord) -> bool:
        found = operand(record)
        return isinstance(found, str) and holds(found, wanted)

    return test
