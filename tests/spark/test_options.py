"""Option tables, without Spark: what is taken, and that what is refused is refused by name, with what would be taken."""

import copy
from collections.abc import Mapping

import pytest

from braidlog.spark.options import (
    REQUIRED,
    FormatOptions,
    Kind,
    Option,
    OptionError,
    Options,
    duration_ms,
    flag,
    json_object,
    names,
    one_of,
    option,
    servers,
    size,
    text,
    whole,
)

OPTIONS = FormatOptions(
    "braidlog-test",
    "read",
    (
        Option("servers", servers, REQUIRED, "where", aliases=("kafka.bootstrap.servers",)),
        Option("maxRows", whole(), None, "how many"),
        Option("onLoss", one_of("fail", "skip"), "fail", "what then"),
        Option("subscribe", names, None, "what"),
        Option("assign", json_object("JSON", dict), None, "what"),
    ),
)
HERE = {"servers": "localhost:9092"}


def refusal(given: Mapping[str, str]) -> OptionError:
    with pytest.raises(OptionError) as caught:
        OPTIONS.read({**HERE, **given})
    return caught.value


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (whole(), "1", 1),
        (whole(), " 42 ", 42),
        (whole(-2), "-2", -2),
        (whole(0, 5), "5", 5),
        (size, "1", 1),
        (size, "64k", 65536),
        (size, "64 KB", 65536),
        (size, "64MiB", 64 * 2**20),
        (size, "2g", 2**31),
        (duration_ms, "250", 250),
        (duration_ms, "250ms", 250),
        (duration_ms, "15m", 900_000),
        (duration_ms, "1 hour", 3_600_000),
        (duration_ms, "2 days", 172_800_000),
        (flag, "TRUE", True),
        (flag, "false", False),
        (one_of("null", "fail"), "FAIL", "fail"),
        (text, " a ", "a"),
        (names, "a, b,,a", ("a", "b")),
        (json_object("x", dict), '{"a": [0]}', {"a": [0]}),
        (servers, "h:1", "kafka://h:1"),
        (servers, "h:1,i:2", "kafka://h:1,i:2"),
        (servers, "kafka+tls://u:p@h?sasl=PLAIN", "kafka+tls://u:p@h?sasl=PLAIN"),
        (servers, "flux://h:1", "flux://h:1"),
    ],
)
def test_a_kind_takes(kind: Kind, given: str, meant: object) -> None:
    assert kind.parse(given) == meant


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((whole(), bad) for bad in ("0", "-1", "1.5", "1e3", "", "x", "9" * 19, "1 2", "٣")),
        *((whole(0, 5), bad) for bad in ("6", "-1")),
        *((size, bad) for bad in ("0", "-1", "1.5m", "m", "1x", "", "9999999t")),
        *((duration_ms, bad) for bad in ("-1", "1.5s", "s", "1 week", "")),
        *((flag, bad) for bad in ("yes", "1", "")),
        *((one_of("a", "b"), bad) for bad in ("c", "", "ab")),
        *((text, bad) for bad in ("", "  ")),
        *((names, bad) for bad in ("", " , ")),
        *((json_object("x", dict), bad) for bad in ("", "[]", "{", "1", '{"a":}')),
        *((servers, bad) for bad in ("http://h:1", "h:x", "h:0", "h:70000", "kafka://h:1/topic")),
    ],
)
def test_a_kind_refuses(kind: Kind, given: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the sentence is the table's
        kind.parse(given)


def test_names_have_no_case_and_aliases_are_names_too() -> None:
    chosen = OPTIONS.read({"KAFKA.Bootstrap.Servers": "h:1", "maxrows": "5"})
    assert (chosen["servers"], chosen["maxRows"], chosen["onLoss"], chosen["subscribe"]) == (
        "kafka://h:1",
        5,
        "fail",
        None,
    )
    assert chosen.given == {"servers", "maxRows"}
    assert set(chosen) == {"servers", "maxRows", "onLoss", "subscribe", "assign"}
    assert len(chosen) == 5


def test_an_error_names_the_option_the_value_and_what_is_taken() -> None:
    error = refusal({"maxrows": "many"})
    assert (error.option, error.given) == ("maxRows", "many")
    assert str(error) == "option maxRows = 'many': it must be a whole number of at least 1"


def test_a_long_value_is_shown_in_part() -> None:
    assert len(str(refusal({"maxRows": "9" * 5000}))) < 300


def test_an_error_keeps_a_password_to_itself() -> None:
    error = refusal({"servers": "http://user:hunter2@h:1"})
    assert "hunter2" not in str(error)
    assert "option servers" in str(error)


def test_what_is_required_is_asked_for() -> None:
    with pytest.raises(OptionError, match="option servers: it must be set: host:port of the Kafka listener"):
        OPTIONS.read({})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("maxRow", "did you mean maxRows?"),
        ("MAXROWZ", "did you mean maxRows?"),
        ("subscrbe", "did you mean subscribe?"),
        ("bootstrap.servers", "did you mean kafka.bootstrap.servers?"),
        ("qqqq", "the options are servers, maxRows, onLoss, subscribe, assign"),
        ("kafka.linger.ms", "braidlog-test supports of kafka.*: kafka.bootstrap.servers"),
        ("kafka.auto.offset.reset", "use startingOffsets"),
        ("kafka.sasl.jaas.config", "put credentials into the URL"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name: str, said: str) -> None:
    error = refusal({name: "1"})
    assert error.option == name
    assert said in str(error)


def test_what_spark_adds_is_no_mistake() -> None:
    assert OPTIONS.read({**HERE, "checkpointLocation": "/x", "queryName": "q"}).given == {"servers"}


def test_the_same_option_twice_is_refused_unless_it_says_the_same() -> None:
    assert "it is also set as" in str(refusal({"kafka.bootstrap.servers": "other:1"}))
    assert OPTIONS.read({**HERE, "kafka.bootstrap.servers": "localhost:9092"})["servers"] == "kafka://localhost:9092"


def test_one_of_several() -> None:
    one = OPTIONS.read({**HERE, "subscribe": "a"})
    assert one.exactly_one("subscribe", "assign") == "subscribe"
    assert one.at_most_one("assign") is None
    both = OPTIONS.read({**HERE, "subscribe": "a", "assign": "{}"})
    for given in (both, OPTIONS.read(HERE)):
        with pytest.raises(OptionError, match="exactly one of subscribe, assign must be set"):
            given.exactly_one("subscribe", "assign")
    with pytest.raises(OptionError, match="option assign: it cannot be set together with subscribe"):
        both.at_most_one("subscribe", "assign")


def test_an_error_can_be_made_again_from_its_arguments_as_workers_do() -> None:
    error = refusal({"maxRows": "x"})
    assert str(copy.copy(error)) == str(error)


# -- as attributes -------------------------------------------------------------------------------------------------------


SERVERS = servers


class Settings(Options, format="made-up", direction="read", more=(Option("handedOn", text, None, "Another's."),)):
    servers: str = option(SERVERS, REQUIRED, "Where.", "kafka.bootstrap.servers")
    stage_timeout_ms_max: int = option(whole(), "7", "How long.")
    group_id: str | None = option(text, None, "Who.")


def test_a_class_declares_rows_and_has_their_values() -> None:
    assert [row.name for row in Settings.declared.options] == ["servers", "stageTimeoutMsMax", "groupId", "handedOn"]
    found = Settings({"KAFKA.BOOTSTRAP.SERVERS": "h:1", "stagetimeoutmsmax": "9", "handedOn": "x"})
    assert (found.servers, found.stage_timeout_ms_max, found.group_id) == ("kafka://h:1", 9, None)
    assert found.chosen.given == {"servers", "stageTimeoutMsMax", "handedOn"}
    assert found.chosen["handedOn"] == "x"


def test_a_class_refuses_what_its_rows_refuse() -> None:
    for given, said in (({}, "servers: it must be set"), ({"servers": "h:1", "groupsId": "g"}, "mean groupId?")):
        with pytest.raises(OptionError, match=said):
            Settings(given)


def test_what_was_chosen_travels() -> None:
    made = Settings({"servers": "h:1", "groupId": "g"})
    there = copy.deepcopy(made)  # by the same protocol as pickling
    assert there == made
    assert (there.servers, there.group_id, there.chosen.given) == ("kafka://h:1", "g", made.chosen.given)
    assert there != Settings({"servers": "h:1"})
