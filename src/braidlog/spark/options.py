"""Declares the options of a Spark format: name, valid values, default.

Every option is honoured or refused by name; none is ignored silently. Names are case-insensitive, as in Spark. Does
not handle: applying options, Spark.
A format declares each option once, as a row and an attribute; reading, errors and the page in docs/reference follow from it:

    class Settings(Options, format="braidlog", direction="write"):
        servers: str = option(servers, REQUIRED, "Where the node is.")
        stage_timeout: int = option(duration_ms, "15m", "…")       # the option stageTimeout

    Settings(self.options).servers
"""

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from braidlog.client.schemes import SCHEMES, parse_url

_log = logging.getLogger("braidlog.spark")

REQUIRED: Final = "required"
"""Marks an option without a default."""

BY_SPARK = frozenset(
    {
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "_asyncprogresstrackingoverridesinksupportcheck",
        "checkpointlocation",
        "queryname",
    }
)
"""Spark's own options that it also passes to the format."""

UPSERT: Final = (
    "Spark writes to this format in mode append only; for update and complete, "
    "writeStream.foreachBatch(braidlog.spark.upsert.{what}(…)) writes the last row of each key"
)
_NO_TABLE: Final = (
    "a table in Spark's catalog does not pass its options to a Python source: use CREATE TEMPORARY VIEW … USING "
    "{format} OPTIONS (…), braidlog.spark.tables(spark, …), or SELECT … FROM table WITH (servers = '…', …)"
)
_OF_CATALOG: Final = "option."
"""The prefix that Spark adds to the names of a table's options when it creates one."""
_JAVA = "kafka."
_JAVA_REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets",
    "kafka.enable.auto.commit": "progress is committed to the group in groupId",
    "kafka.key.deserializer": "keys are binary",
    "kafka.value.deserializer": "use valueFormat",
    "kafka.key.serializer": "keys are binary",
    "kafka.value.serializer": "values are binary",
    "kafka.interceptor.classes": "there is no Java client",
    "kafka.security.protocol": "put TLS into the URL: servers = kafka+tls://host:port?cafile=…",
    "kafka.sasl.mechanism": "put it into the URL: servers = kafka://user:password@host:port?sasl=SCRAM-SHA-256",
    "kafka.sasl.jaas.config": "put credentials into the URL: servers = kafka://user:password@host:port",
}
_SHOWN_MAX = 120


@lru_cache(maxsize=64)
def warn_once(sentence: str) -> None:
    """Log a warning once per process, not at every trigger."""
    _log.warning("%s", sentence)


class OptionError(ValueError):
    """An invalid option: its name, the given value, the valid values."""

    def __init__(self, option: str, given: str | None, accepted: str) -> None:
        super().__init__(option, given, accepted)
        self.option = option
        self.given = given
        self.accepted = accepted

    def __str__(self) -> str:
        if self.given is None:
            return f"option {self.option}: {self.accepted}"
        shown = self.given if len(self.given) <= _SHOWN_MAX else f"{self.given[:_SHOWN_MAX]}…"
        return f"option {self.option} = {shown!r}: {self.accepted}"


# -- kinds of values
# -----------------------------------------------------------------------------------------------------


class Kind(msgspec.Struct, frozen=True):
    """`parse` raises ValueError for invalid values; the error's text, if any, is shown after the form."""

    form: str
    parse: Callable[[str], Any]
    secret: bool = False
    """The value may contain a password, and is not repeated in an error."""


def _whole(value: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value):
        raise ValueError
    return int(value)


def whole(low: int = 1, high: int = 2**63 - 1) -> Kind:
    """A whole number in [low, high]."""

    def parse(value: str) -> int:
        number = _whole(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return Kind(f"a whole number of at least {low}" if high == 2**63 - 1 else f"a whole number, {low} to {high}", parse)


_SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def _size(value: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*([kmgt]?)(?:i?b)?\s*", value.lower())
    size = int(match[1]) * _SIZES[match[2]] if match else 0
    if not 0 < size < 2**63:
        raise ValueError
    return size


size = Kind("a number of bytes of at least 1, also as 64k, 64m, 1g (powers of 1024)", _size)

_DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS = {
    "ms": ("", "ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_MS_OF = {word: _DURATIONS[unit] for unit, words in _UNITS.items() for word in words}


def _duration_ms(value: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", value.lower())
    if not match or match[2] not in _MS_OF:
        raise ValueError
    return int(match[1]) * _MS_OF[match[2]]


duration_ms = Kind("a time such as 200ms, 30s, 15m, 1h; a bare number is milliseconds", _duration_ms)

_FLAGS = {"true": True, "false": False}


def _flag(value: str) -> bool:
    try:
        return _FLAGS[value.strip().lower()]
    except KeyError:
        raise ValueError from None


flag = Kind("true or false", _flag)


def one_of(*words: str, gone: Mapping[str, str] | None = None) -> Kind:
    """One of these words, case-insensitive. `gone`: former words, and what to use instead."""

    def parse(value: str) -> str:
        if gone and value.strip().lower() in gone:
            raise ValueError(gone[value.strip().lower()])
        for word in words:
            if word.lower() == value.strip().lower():
                return word
        raise ValueError

    return Kind(f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0], parse)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value.strip()


text = Kind("a non-empty text", _text)


def _names(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError
    return names


names = Kind("names separated by commas", _names)


def _json_object(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def json_object(form: str, convert: Callable[[dict[str, Any]], Any]) -> Kind:
    """A JSON object; `convert` turns it into the option's value, or raises ValueError."""
    return Kind(form, lambda value: convert(_json_object(value)))


def _servers(value: str) -> str:
    """Parse a URL of `braidlog.connect`: plain `host:port` means the Kafka listener."""
    value = value.strip()
    url = value if "://" in value else f"kafka://{value}"
    parse_url(url)
    return url


servers = Kind(
    "host:port of the Kafka listener (several with commas), or a URL such as kafka://user:token@host:port; "
    f"schemes: {', '.join(SCHEMES)}",
    _servers,
    secret=True,
)


def _registry(value: str) -> str:
    parts = urlsplit(value.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError
    return value.strip()


registry = Kind(
    "the address of a schema registry such as http://127.0.0.1:8081, or http://name:token@host:port",
    _registry,
    secret=True,
)


# -- formats -------------------------------------------------------------------------------------------------------------


class Option(msgspec.Struct, frozen=True):
    """One option. `default` is a text as a user would write it, None for "not set", or REQUIRED."""

    name: str
    kind: Kind
    default: str | None
    meaning: str
    aliases: tuple[str, ...] = ()


class Chosen(dict[str, Any]):
    """The options of one query: every option of the format, by its declared name; None if it is not set."""

    def __init__(self, values: dict[str, Any], given: frozenset[str]) -> None:
        super().__init__(values)
        self.given = given
        """The declared names of the options that the user set."""

    def exactly_one(self, *names: str) -> str:
        """Return which of these is set; raise OptionError unless exactly one is."""
        chosen = [name for name in names if name in self.given]
        if len(chosen) != 1:
            said = f"exactly one of {', '.join(names)} must be set, not {len(chosen)}"
            raise OptionError(chosen[1] if chosen else names[0], None, said)
        return chosen[0]

    def at_most_one(self, *names: str) -> str | None:
        chosen = [name for name in names if name in self.given]
        if len(chosen) > 1:
            raise OptionError(chosen[1], None, f"it cannot be set together with {chosen[0]}")
        return chosen[0] if chosen else None


class FormatOptions(msgspec.Struct, frozen=True):
    """The options of one format in one direction (`read` or `write`)."""

    format: str
    direction: str
    options: tuple[Option, ...]

    def read(self, given: Mapping[str, str]) -> Chosen:
        """Validate the user's options; `OptionError` says which option is wrong, and the valid values."""
        if any(name.lower().startswith(_OF_CATALOG) for name in given):
            raise OptionError("USING", self.format, _NO_TABLE.format(format=self.format))
        if not given:
            first, hint = self.options[0], _NO_TABLE.format(format=self.format)
            raise OptionError(first.name, None, f"it must be set: {first.kind.form}. No option is set at all: {hint}")
        by_name = {word.lower(): option for option in self.options for word in (option.name, *option.aliases)}
        texts: dict[str, str] = {}
        for name, value in given.items():
            option = by_name.get(name.lower())
            if option is None:
                self.check_name(name)
            elif texts.setdefault(option.name, str(value)) != str(value):
                raise OptionError(option.name, None, f"it is also set as {name}, to a different value")
        values = {option.name: _value_of(option, texts.get(option.name)) for option in self.options}
        return Chosen(values, frozenset(texts))

    def check_name(self, name: str) -> None:
        """Raise `OptionError` for an unknown name, with similar names or a replacement."""
        low = name.lower()
        if low in BY_SPARK or any(low == word.lower() for row in self.options for word in (row.name, *row.aliases)):
            return
        if low in _JAVA_REFUSED:
            raise OptionError(
                name, None, f"it is a setting of Kafka's Java client and not supported; {_JAVA_REFUSED[low]}"
            )
        words = [word for option in self.options for word in (option.name, *option.aliases)]
        if low.startswith(_JAVA):
            java = [word for word in words if word.startswith(_JAVA)]
            raise OptionError(
                name,
                None,
                f"{self.format} supports of kafka.*: {', '.join(java) or 'none'}; there is no Java client here",
            )
        near = difflib.get_close_matches(low, [word.lower() for word in words], n=1, cutoff=0.6)
        meant = next((word for word in words if near and word.lower() == near[0]), None)
        hint = (
            f"did you mean {meant}?"
            if meant
            else f"the options are {', '.join(option.name for option in self.options)}"
        )
        raise OptionError(name, None, f"{self.format} has no such option to {self.direction} with; {hint}")


def _value_of(option: Option, given: str | None) -> Any:  # noqa: ANN401 - each option has a kind of its own
    said = option.default if given is None else given
    if said is None:
        return None
    if said is REQUIRED:
        raise OptionError(option.name, None, f"it must be set: {option.kind.form}")
    try:
        return option.kind.parse(said)
    except ValueError as error:
        why = f" ({error})" if str(error) else ""
        shown = "…" if option.kind.secret else said
        raise OptionError(option.name, shown, f"it must be {option.kind.form}{why}") from None


# -- as attributes -------------------------------------------------------------------------------------------------------


def option(kind: Kind, default: str | None, meaning: str, *aliases: str) -> Any:  # noqa: ANN401 - what the kind makes of it
    """Declare an option in an `Options` class; the attribute holds the chosen value."""
    return Option("", kind, default, meaning, aliases)


class Options:
    """The validated options of one query as attributes. `more`: options that the format passes on."""

    declared: ClassVar[FormatOptions]
    chosen: Chosen

    def __init_subclass__(cls, *, format: str, direction: str, more: tuple[Option, ...] = ()) -> None:  # noqa: A002
        rows = {name: row for name, row in vars(cls).items() if isinstance(row, Option)}
        own = tuple(msgspec.structs.replace(row, name=_camel(name)) for name, row in rows.items())
        cls.declared = FormatOptions(format, direction, (*own, *more))
        cls._own = tuple(rows)

    _own: ClassVar[tuple[str, ...]]

    def __init__(self, given: Mapping[str, str]) -> None:
        self.chosen = self.declared.read(given)
        for name in self._own:
            setattr(self, name, self.chosen[_camel(name)])

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))
