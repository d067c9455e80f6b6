"""Spark's promise: a topic is a table and a stream, without a jar. Clicks are written by a plain client, counted by Spark, and
written back to a topic exactly once; then they are drawn.

python examples/spark_clicks.py                                   starts a node of its own; needs Java 17 and braidlog[spark]
python examples/spark_clicks.py kafka://127.0.0.1:9092 out.svg    talks to yours, draws where you say

The lines `# %%` begin cells: editors that know notebooks run them one by one.
"""

# %% What is needed
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

import braidlog
from braidlog.spark import session
from braidlog.testing.server import ServerProcess

PAGES = ("home", "search", "cart", "pay")
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
MINUTES = 30


# %% Clicks: half an hour of a shop, with ever fewer people the deeper they go
def write_clicks(url: str, count: int = 3000) -> None:
    dice = random.Random(1)  # noqa: S311 - the same clicks every time
    with braidlog.connect(url) as client:
        client.admin.ensure_topic("clicks", partitions=2)
        client.admin.ensure_topic("payments", partitions=1)
        producer = client.producer()
        for number in range(count):
            page = dice.choices(PAGES, (8, 4, 2, 1))[0]
            at = START_MS + int(dice.triangular(0, MINUTES, MINUTES * 0.7) * 60_000)
            producer.send("clicks", page.encode(), key=b"visitor-%d" % (number % 97), timestamp_ms=at)


# %% A topic is a table
def per_minute(clicks: DataFrame) -> DataFrame:
    minute = f.window("timestamp", "1 minute").start
    return clicks.groupBy(minute.alias("minute"), f.col("value").cast("string").alias("page")).count()


def read_clicks(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("braidlog").options(servers=url, subscribe="clicks").load()


# %% And a stream: payments are written to a topic of their own, each once, however often this is run
def stream_back(spark: SparkSession, url: str, checkpoint: Path) -> None:
    clicks = (
        spark.readStream.format("braidlog").options(servers=url, subscribe="clicks", startingOffsets="earliest").load()
    )
    pays = clicks.where("cast(value AS string) = 'pay'").select("key", f.to_json(f.struct("timestamp")).alias("value"))
    writer = pays.writeStream.format("braidlog").options(servers=url, topic="payments")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


# %% A plot, in a few lines of SVG
def draw(rows: list[Row]) -> str:
    colours = dict(zip(PAGES, ("#0b6bcb", "#c2410c", "#15803d", "#7e22ce"), strict=True))
    top = max(row["count"] for row in rows)
    first = min(row.minute for row in rows)
    lines = []
    for page, colour in colours.items():
        at = sorted((int((row.minute - first).total_seconds() // 60), row["count"]) for row in rows if row.page == page)
        points = " ".join(f"{40 + 18 * minute},{210 - 190 * count / top:.1f}" for minute, count in at)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x = 40 + 140 * PAGES.index(page)
        lines.append(f'<text x="{x}" y="235" fill="{colour}" font-family="sans-serif" font-size="14">{page}</text>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 600 240">{"".join(lines)}</svg>\n'


# %% All of it
def main(url: str, picture: Path, folder: Path) -> None:
    write_clicks(url)
    quiet = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = session("clicks", "local[2]", log_level="ERROR", **quiet)
    try:
        rows = per_minute(read_clicks(spark, url)).orderBy("minute", "page").collect()
        for page in PAGES:
            print(f"{page:7} {sum(row['count'] for row in rows if row.page == page):5} clicks")
        for _ in range(2):  # the second run finds nothing new
            stream_back(spark, url, folder / "checkpoint")
        back = spark.read.format("braidlog").options(servers=url, subscribe="payments").load().count()
        print(f"written back: {back}")
    finally:
        spark.stop()
    picture.write_text(draw(rows), encoding="utf-8")
    print(f"drawn: {picture}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "clicks.svg"), Path(place))
        else:
            with ServerProcess(f"{place}/data") as node:
                main(f"kafka://127.0.0.1:{node.ports['kafka']}", Path(place) / "clicks.svg", Path(place))
