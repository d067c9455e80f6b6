"""Apache Avro's own `SchemaCompatibility`, from the jars of PySpark, says of each pair what we say of it."""

import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.registry.avro.test_schema import NOT_READ, READ, root

from braidlog.registry.avro.avro_compatibility import misfits
from braidlog.registry.errors import PAIRS_MAX, Code, RegistryError

PAIRS = 3000
PRIMITIVES = {
    "int": 0,
    "long": 0,
    "float": 0.5,
    "double": 0.5,
    "string": "",
    "bytes": "",
    "boolean": True,
    "null": None,
}
DEPTH_MAX = 3
JARS = Path(pyspark.__file__).parent / "jars"


class Schemas:
    """Draws a schema, and another that is like it but for a few things."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0

    def pair(self) -> tuple[Any, Any]:
        self._names = 0
        writer = self._drawn(0)
        return self._changed(writer, 0), writer

    def _drawn(self, depth: int) -> Any:
        draw = self._random
        kinds = [*PRIMITIVES] if depth >= DEPTH_MAX else [*PRIMITIVES, "array", "map", "union", *["named"] * 6]
        match draw.choice(kinds):
            case "array":
                return {"type": "array", "items": self._drawn(depth + 1)}
            case "map":
                return {"type": "map", "values": self._drawn(depth + 1)}
            case "union":
                return [*draw.sample([*PRIMITIVES], draw.randint(1, 3)), *self._some([self._named(depth + 1)])]
            case "named":
                return self._named(depth)
            case primitive:
                return primitive

    def _some(self, items: Sequence[Any]) -> list[Any]:
        return [each for each in items if self._random.random() < 0.5]

    def _named(self, depth: int) -> Any:
        draw = self._random
        self._names += 1
        named = {"name": f"N{self._names}", "namespace": draw.choice(["", "x"])}
        match draw.choice(["enum", "fixed", "record", "record"]):
            case "enum":
                return {"type": "enum", "symbols": draw.sample("ABCD", draw.randint(1, 4)), **named}
            case "fixed":
                return {"type": "fixed", "size": draw.randint(1, 2), **named}
            case _:
                return {"type": "record", "fields": self._fields(depth), **named}

    def _fields(self, depth: int) -> list[Any]:
        return [self._field(name, self._drawn(depth + 1)) for name in self._random.sample("abcd", 2)]

    def _field(self, name: str, kind: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "type": kind}
        if self._random.random() < 0.5 and isinstance(kind, str):
            found["default"] = PRIMITIVES[kind]
        return found

    def _changed(self, schema: Any, depth: int) -> Any:  # noqa: PLR0911 - one answer a kind
        draw = self._random
        if draw.random() < 0.05:
            return self._drawn(depth)
        if isinstance(schema, str):
            return draw.choice([*PRIMITIVES]) if draw.random() < 0.2 else schema
        if isinstance(schema, list):
            kept = self._some(schema) or schema
            return (
                [*kept, *(each for each in self._some([*PRIMITIVES]) if each not in kept)]
                if draw.random() < 0.3
                else schema
            )
        match schema["type"]:
            case "array":
                return schema | {"items": self._changed(schema["items"], depth + 1)}
            case "map":
                return schema | {"values": self._changed(schema["values"], depth + 1)}
        schema = self._renamed(schema)
        match schema["type"]:
            case "enum":
                symbols = draw.sample("ABCD", draw.randint(1, 4)) if draw.random() < 0.3 else schema["symbols"]
                return schema | {"symbols": symbols} | (draw.choice([{}, {}, {"default": symbols[0]}]))
            case "fixed":
                return schema | {"size": draw.randint(1, 2)} if draw.random() < 0.3 else schema
        return schema | {"fields": self._other_fields(schema["fields"], depth)}

    def _renamed(self, schema: Any) -> Any:
        if self._random.random() >= 0.2:
            return schema
        self._names += 1
        before = f"{schema['namespace']}.{schema['name']}".lstrip(".")
        aliases = self._random.choice([{}, {"aliases": [before]}, {"aliases": [schema["name"]]}])
        return schema | {"name": f"N{self._names}"} | aliases

    def _other_fields(self, fields: list[Any], depth: int) -> list[Any]:
        draw = self._random
        found = []
        for each in fields:
            if draw.random() < 0.1:
                continue
            other = self._field(each["name"], self._changed(each["type"], depth + 1))
            if draw.random() < 0.15:
                other |= {"name": each["name"] * 2, "aliases": [each["name"]]}
            found.append(other)
        if draw.random() < 0.2:
            found.append(self._field("e", draw.choice([*PRIMITIVES])))
        return found


def judged(pairs: Sequence[tuple[Any, Any]]) -> list[set[str]]:
    told = "".join(f"{json.dumps(reader)}\t{json.dumps(writer)}\n" for reader, writer in pairs)
    command = ["java", "-cp", f"{JARS}/*", str(Path(__file__).with_name("AvroJudge.java"))]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [{kind for kind in line.split(",") if kind} for line in done.stdout.split("\n")[: len(pairs)]]


@pytest.mark.skipif(shutil.which("java") is None, reason="no java: Apache Avro cannot be asked")
def test_apache_avro_says_the_same() -> None:
    seed = int(os.environ.get("AVRO_SEED", random.SystemRandom().randrange(2**32)))
    print(f"AVRO_SEED={seed}")
    schemas = Schemas(seed)
    pairs = [*READ, *((reader, writer) for reader, writer, _ in NOT_READ), *(schemas.pair() for _ in range(PAIRS))]
    verdicts = judged(pairs)
    assert sum(not each for each in verdicts) > PAIRS // 5, "some are read"
    assert sum(map(bool, verdicts)) > PAIRS // 5, "some are not"
    for (reader, writer), verdict in zip(pairs, verdicts, strict=True):
        ours = {
            found for each in misfits(root(reader), root(writer)) for found in re.findall(r"errorType:'(\w+)'", each)
        }
        assert ours == verdict, f"{json.dumps(reader)} reads {json.dumps(writer)}"


def test_branches_of_unions_are_matched_by_name() -> None:
    """All pairs of branches would be a hundred times as many as may be compared."""
    few = [{"type": "record", "name": f"R{each}", "fields": []} for each in range(PAIRS_MAX // 30)]
    more = [{**each, "fields": [{"name": "a", "type": "int", "default": 0}]} for each in few]
    assert misfits(root(more[::-1]), root(few)) == []
    assert len(misfits(root(more[1:]), root(few))) == 1


def test_pairs_of_types_are_bounded() -> None:
    """Names that are told apart by namespaces only: Avro compares them all."""
    writer, reader = (
        [
            {"type": "record", "name": "R", "namespace": f"n{each}", "fields": [{"name": name, "type": "int"}]}
            for each in range(400)
        ]
        for name in ("a", "b")
    )
    with pytest.raises(RegistryError, match="pairs of types; use fewer branches") as caught:
        misfits(root(reader), root(writer))
    assert caught.value.code is Code.INVALID_SCHEMA
