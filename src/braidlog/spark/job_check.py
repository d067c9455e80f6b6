"""Checks a job written for Spark's Kafka connector: reports each option and call that differs, by line.

Does not handle: running the job; only its source is read.
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
    """`verdict`: `same` (no action needed), `change` (the job must be edited), `refused` (there is no equivalent)."""

    line: int
    what: str
    verdict: str
    says: str


_CALLS = {
    ("format", "kafka"): (CHANGE, 'write format("braidlog")'),
    ("outputMode", "update"): (
        CHANGE,
        "Spark passes mode update to no Python sink: foreachBatch(braidlog.spark.upsert.topic(…))",
    ),
    ("outputMode", "complete"): (
        CHANGE,
        "only braidlog-lake supports it; for topics: foreachBatch(braidlog.spark.upsert.topic(…))",
    ),
    ("trigger", "continuous"): (REFUSED, "Spark's continuous mode does not support Python sources; use processingTime"),
    ("trigger", "realTime"): (
        REFUSED,
        "real-time mode does not support Python sources; Spark's Kafka connector can read from the same port",
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
    """Return the findings of a job, in line order. `SyntaxError` if it is not valid Python."""
    tree = ast.parse(text, name)
    of_kafka = dict(_kafka_calls(tree))
    findings = [finding for node in ast.walk(tree) for finding in _of_node(node, of_kafka.get(node))]
    return sorted(set(findings), key=lambda each: (each.line, each.what))


def _kafka_calls(tree: ast.AST) -> Iterator[tuple[ast.AST, FormatOptions]]:
    """Yield calls chained to format("kafka"), with the options of their direction: only there is an option certainly
    Kafka's."""
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
            yield Finding(line, call, CHANGE, 'Spark does not pass it to a Python sink: use option("partitionBy", …)')


def _options(node: ast.Call, line: int) -> Iterator[tuple[int, str, str | None]]:
    """Yield line, name and value of the options that a call sets; the value is None if it is not a literal."""
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
    if value is not None and (verdict := judged(low, value)) is not None:
        yield Finding(line, name, SAME if verdict[0] else REFUSED, verdict[1])
    elif low in TUNING:
        yield Finding(line, name, SAME, "has no effect here: it tunes Kafka's Java client")
    elif low in RENAMED:
        yield Finding(line, name, SAME, f"accepted as {RENAMED[low]}")
    elif low in SECURITY:
        yield Finding(line, name, SAME, "accepted; it becomes part of the URL in servers")
    elif (low.startswith(PREFIX) or declared is not None) and low not in BY_SPARK:
        # Without a known format, it may be an option of either direction.
        candidates = (Query.declared, Settings.declared) if declared is None else (declared,)
        refusals = [error.accepted for candidate in candidates if (error := _refused(candidate, name)) is not None]
        if len(refusals) == len(candidates):
            yield Finding(line, name, REFUSED, refusals[0])


def _refused(declared: FormatOptions, name: str) -> OptionError | None:
    try:
        declared.check_name(name)
    except OptionError as error:
        return error
    return None
