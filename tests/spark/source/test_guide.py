"""Every block of the guide runs, one after the other, and says what the guide leads one to expect."""

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.source.topics import World

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "spark-topics.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SAID = """\
all: 1001
of one minute: 60
batches: [600, 401]
lag: [0, 0]
warm: {'sensor': 0, 'count': 14}
bad: [500]
"""


def test_every_block_runs(spark: SparkSession, world: World) -> None:
    said = io.StringIO()
    names: dict[str, object] = {"spark": spark}
    with contextlib.redirect_stdout(said):
        for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")):
            exec(block.replace("127.0.0.1:9092", world.servers), names)
    assert said.getvalue() == SAID
