"""A line of JSON for each event."""

import json
import logging
import sys

from braidlog.model.reporting.json_log_line import JsonLines, formatter


def record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("braidlog.x", logging.WARNING, __file__, 1, message, arguments, None)
    made.__dict__.update(more)
    return made


def test_time_level_logger_message() -> None:
    made = record("%s is %d", "a", 1)
    made.created, made.msecs = 1_800_000_000.25, 250.0
    assert json.loads(JsonLines().format(made)) == {
        "time": "2027-01-15T08:00:00.250Z",
        "level": "warning",
        "logger": "braidlog.x",
        "message": "a is 1",
    }


def test_what_the_caller_adds_are_fields() -> None:
    line = json.loads(JsonLines().format(record("m", topic="orders", partition=3, where={"a": 1})))
    assert line["fields"] == {"topic": "orders", "partition": 3, "where": "{'a': 1}"}


def test_one_event_is_one_line_whatever_is_in_it() -> None:
    made = record("")
    try:
        int("two\nlines")
    except ValueError:
        made = record("also\ntwo\u2028\x00")
        made.exc_info = sys.exc_info()
    text = JsonLines().format(made)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "also\ntwo\u2028\x00"
    assert "ValueError: invalid literal" in line["error"]


def test_text_is_text() -> None:
    assert formatter("text", "%(levelname)s %(message)s").format(record("m")) == "WARNING m"
    assert json.loads(formatter("json").format(record("m")))["message"] == "m"
