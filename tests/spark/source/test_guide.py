"""Every block of the guide runs, one after the other, and says what the guide leads one to expect."""

import contextlib
import io
import re
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from pyspark.sql import SparkSession
from tests.spark.source.test_schemas import NEW, OLD, serialized
from tests.spark.source.topics import Runtime

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "spark-topics.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SAID = """\
all: 1001
of one minute: 60
batches: [600, 401]
lag: [0, 0]
warm: {'sensor': 0, 'count': 14}
bad: [500]
orders: [(1, 5.0, None), (2, 2.5, 'n')]
"""


def test_every_block_runs(spark: SparkSession, runtime: Runtime) -> None:
    with SchemaRegistryClient({"url": runtime.registry}) as client:  # what the guide's topic `orders` holds
        serialized(runtime, "orders", AvroSerializer(client, OLD), {"id": 1, "price": 5, "gone": "x"})
        serialized(runtime, "orders", AvroSerializer(client, NEW), {"id": 2, "price": 2.5, "note": "n"})
    said = io.StringIO()
    names: dict[str, object] = {"spark": spark}
    with contextlib.redirect_stdout(said):
        for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
            exec(
                block.replace("127.0.0.1:9092", runtime.servers).replace("http://127.0.0.1:8081", runtime.registry),
                names,
            )
    assert said.getvalue() == SAID
