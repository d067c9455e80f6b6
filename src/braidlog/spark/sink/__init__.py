"""The sink: rows of a DataFrame become records of topics, each once, whatever is killed in between.

Knows: Spark's writers. Refuses to know: the inside of a server; how a batch counts once is the broker's affair (ADR 13).
`options.py` says what can be set, `columns.py` what a row may hold, `filling.py` how columns become batches, `task.py` what a
task does, `writers.py` what Spark calls.
"""

from braidlog.spark.sink.options import TABLE
from braidlog.spark.sink.writers import batch_writer, stream_writer

__all__ = ["TABLE", "batch_writer", "stream_writer"]
