"""What a job written for Spark's Kafka connector finds here: each option and call that differs, by its line.

Knows: Python's syntax, and which options the formats declare. Refuses to know: what a job does: it is read, not run.
"""

import ast
from collections.abc import Iterator

import msgspec

from braidlog.spark.kafka_options import PREFIX, RENAMED, SECURITY, TUNING, judged
from braidlog.spark.options import BY_SPARK, FormatOptions, OptionError
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
_DIRECTIONS = {
    "read": Query.declared,
    "readStream": Query.declared,
    "write": Settings.declared,
    "writeStream": Settings.declared,
}


def check(text: str, name: str = "job.py") -> list[Finding]:
    """What is to be said of a job, in the order of its lines. `SyntaxError` if it is no Python."""
    tree = ast.parse(text, name)
    of_kafka = dict(_kafka_calls(tree))
    found = [finding for node in ast.walk(tree) for finding in _of_node(node, of_kafka.get(node))]
    return sorted(set(found), key=lambda each: (each.line, each.what))


def _kafka_calls(tree: ast.AST) -> Iterator[tuple[ast.AST, FormatOptions]]:
    """The calls that are chained to a format("kafka"), with the options of its direction: only there any option is Kafka's."""
    for outer in ast.walk(tree):
        calls: list[ast.AST] = []
        node: ast.AST = outer
        while isinstance(node, ast.Call | ast.Attribute):
            if isinstance(node, ast.Call):
                calls.append(node)
                node = node.func
            elif (declared := _DIRECTIONS.get(node.attr)) is not None:
                if any(_is_format_kafka(call) for call in calls):
                    yield from ((call, declared) for call in calls)
                calls, node = [], node.value
            else:
                node = node.value


def _is_format_kafka(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="format"), args=[ast.Constant(value="kafka")]):
            return True
    return False


def _of_node(node: ast.AST, declared: FormatOptions | None) -> Iterator[Finding]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _PACKAGE in node.value:
        yield Finding(node.lineno, "spark.jars.packages", CHANGE, "no jar is needed: leave the Kafka package out")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        line, call = node.func.end_lineno or node.lineno, node.func.attr
        words = [*texts, *(keyword.arg for keyword in node.keywords if keyword.arg is not None)]
        if call in ("option", "options"):
            for at, name, value in _options(node, line):
                yield from _option(at, name, value, declared)
        yield from (Finding(line, f"{call}({word})", *_CALLS[call, word]) for word in words if (call, word) in _CALLS)
        if call == "partitionBy" and any(getattr(part, "attr", None) == "writeStream" for part in ast.walk(node)):
            yield Finding(line, call, CHANGE, 'Spark drops it on the way to a Python sink: option("partitionBy", …)')


def _options(node: ast.Call, line: int) -> Iterator[tuple[int, str, str | None]]:
    """Line, name and value of what a call sets, as far as it is written there: the value is None where it is computed."""
    match node.args:
        case [ast.Constant(value=str(name)), value]:
            yield line, name, _text(value)
    for keyword in node.keywords:
        if keyword.arg is not None:
            yield line, keyword.arg, _text(keyword.value)
        elif isinstance(keyword.value, ast.Dict):
            for key, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.lineno, key.value, _text(value)


def _text(value: ast.expr) -> str | None:
    return str(value.value) if isinstance(value, ast.Constant) else None


def _option(line: int, name: str, value: str | None, declared: FormatOptions | None) -> Iterator[Finding]:
    low = name.lower()
    if value is not None and (found := judged(low, value)) is not None:
        yield Finding(line, name, SAME if found[0] else REFUSED, found[1])
    elif low in TUNING:
        yield Finding(line, name, SAME, "changes nothing here: it tunes Kafka's Java client")
    elif low in RENAMED:
        yield Finding(line, name, SAME, f"understood as {RENAMED[low]}")
    elif low in SECURITY:
        yield Finding(line, name, SAME, "understood; it becomes part of the URL that servers takes")
    elif (low.startswith(PREFIX) or declared is not None) and low not in BY_SPARK:
        # Without a format at hand, it is an option of either direction.
        wanted = (Query.declared, Settings.declared) if declared is None else (declared,)
        refusals = [error.accepted for each in wanted if (error := _refused(each, name)) is not None]
        if len(refusals) == len(wanted):
            yield Finding(line, name, REFUSED, refusals[0])


def _refused(declared: FormatOptions, name: str) -> OptionError | None:
    try:
        declared.check_name(name)
    except OptionError as error:
        return error
    return None
