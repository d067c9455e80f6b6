"""The guide's programs run, one after the other, as its reader would run them."""

import contextlib
import io
import re
from pathlib import Path

from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "lake.md"


def test_the_guide_runs(spark: SparkSession, tmp_path: Path) -> None:
    names = {"spark": spark, "folder": str(tmp_path)}
    printed = []
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(compile(block, str(GUIDE), "exec"), names)
        printed.append(shown.getvalue().split("\n"))
    written, streamed, read, kept, opened = printed
    assert read[0] == "333"
    assert opened[0] == "1000"
    assert written[0] == "1000"
    assert int(streamed[0]) % 100 == 0
    assert int(streamed[0]) > 0
    assert kept[0].startswith("Report(table='delta'")
    assert int(kept[1]) == 1
