"""Every block of the Spark guide runs, as one program against a node on free ports, and says what it should."""

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession

from braidlog.testing.server import ServerProcess

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "spark.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "spark.stop()\n"


def test_every_block_runs(spark: SparkSession, braid_server: ServerProcess) -> None:
    """In the session of the tests, which `session(…)` finds; only the guide's last line would end it, and is left out."""
    assert spark is not None
    code = "\n".join(BLOCK.findall(GUIDE.read_text(encoding="utf-8")))
    assert code.endswith(END)
    for dialect, port in (("kafka", 9092), ("mayfly", 7275)):
        code = code.replace(f"127.0.0.1:{port}", f"127.0.0.1:{braid_server.ports[dialect]}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code.removesuffix(END), str(GUIDE), "exec"), {})
    assert shown.getvalue().splitlines() == ["rows: 100", "written: 100", "keys: 7", "in the table: 100"]


def test_every_block_about_streams_runs(spark: SparkSession, braid_server: ServerProcess) -> None:
    text = GUIDE.with_name("spark-streams.md").read_text(encoding="utf-8")
    code = "\n".join(BLOCK.findall(text))
    for dialect, port in (("kafka", 9092), ("mayfly", 7275)):
        code = code.replace(f"127.0.0.1:{port}", f"127.0.0.1:{braid_server.ports[dialect]}")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "spark-streams.md", "exec"), {"spark": spark})
    assert shown.getvalue().splitlines() == [
        "part: 10 of 100",
        "in SQL: 49",
        "`delay` BIGINT, `flight` BIGINT, `origin` STRING",
        "[('Oslo', 97), ('Rome', 99)]",
        "now: 10 of 100",
    ]
    for view in ("flights", "changes"):
        spark.catalog.dropTempView(view)
