"""What a job written for Spark's Kafka connector finds here: each option and call that differs, by its line.

Knows: Python's syntax, and which options the formats declare. Refuses to know: what a job does: it is read, not run.
"""

import ast
from collections.abc import Iterator

import msgspec

from braidlog.spark.kafka_options import PREFIX, RENAMED, SECURITY, TUNING
from braidlog.spark.options import BY_SPARK, OptionError
from braidlog.spark.sink.options import Settings
from braidlog.spark.source.options import Query

SAME, CHANGE, REFUSED = "same", "change", "refused"


class Finding(msgspec.Struct, frozen=True):
    """`verdict`: `same` (noted, and nothing to do), `change` (the job has to say it in another way), `refused`."""

    line: int
    what: str
    verdict: str
    says: str


_CALLS = {
    ("format", "kafka"): (CHANGE, 'say format("braidlog")'),
    ("outputMode", "update"): (
        CHANGE,
        "Spark gives update to no Python sink: foreachBatch(braidlog.spark.upsert.topic(…))",
    ),
    ("outputMode", "complete"): (
        CHANGE,
        "only braidlog-lake takes it; topics: foreachBatch(braidlog.spark.upsert.topic(…))",
    ),
    ("trigger", "continuous"): (REFUSED, "Spark's continuous mode has no Python sources; use processingTime"),
    ("trigger", "realTime"): (
        REFUSED,
        "real-time mode has no Python sources; Spark's Kafka connector reads from the same port",
    ),
}
_PACKAGE = "spark-sql-kafka"


def check(text: str, name: str = "job.py") -> list[Finding]:
    """What is to be said of a job, in the order of its lines. `SyntaxError` if it is no Python."""
    found = [finding for node in ast.walk(ast.parse(text, name)) for finding in _of_node(node)]
    return sorted(set(found), key=lambda each: (each.line, each.what))


def _of_node(node: ast.AST) -> Iterator[Finding]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PACKAGE in node.value:
        yield Finding(node.lineno, "spark.jars.packages", CHANGE, "no jar is needed: leave the Kafka package out")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        line, call = node.func.end_lineno or node.lineno, node.func.attr
        words = [*texts, *(keyword.arg for keyword in node.keywords if keyword.arg is not None)]
        if call in ("option", "options"):
            for name in texts[:1] if call == "option" else words:
                yield from _option(line, name)
            for keyword in node.keywords:
                if keyword.arg is None and isinstance(keyword.value, ast.Dict):
                    yield from (finding for key in keyword.value.keys for finding in _key(key))
        yield from (Finding(line, f"{call}({word})", *_CALLS[call, word]) for word in words if (call, word) in _CALLS)
        if call == "partitionBy" and any(getattr(part, "attr", None) == "writeStream" for part in ast.walk(node)):
            yield Finding(line, call, CHANGE, 'Spark drops it on the way to a Python sink: option("partitionBy", …)')


def _key(key: ast.expr | None) -> Iterator[Finding]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield from _option(key.lineno, key.value)


def _option(line: int, name: str) -> Iterator[Finding]:
    low = name.lower()
    if low in TUNING:
        yield Finding(line, name, SAME, "changes nothing here: it tunes Kafka's Java client")
    elif low in RENAMED:
        yield Finding(line, name, SAME, f"understood as {RENAMED[low]}")
    elif low in SECURITY:
        yield Finding(line, name, SAME, "understood; it becomes part of the URL that servers takes")
    elif low.startswith(PREFIX) and low not in BY_SPARK:
        refusals = []
        for declared in (Query.declared, Settings.declared):
            try:
                declared.check_name(name)
            except OptionError as error:
                refusals.append(error.accepted)
        if len(refusals) > 1:
            yield Finding(line, name, REFUSED, refusals[0])
