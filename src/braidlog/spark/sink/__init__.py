"""Topics as a Spark sink: rows of a DataFrame become records, each once, even after crashes.

The broker ensures that a batch is committed once (docs/adr/0029-sink-batches.md).

| file | contents |
|---|---|
| `options.py` | the options |
| `columns.py` | the columns that a row may have |
| `filling.py` | packs rows into batches, and chooses partitions |
| `task.py` | a task: writes its rows to a stage |
| `writers.py` | Spark's interface: tasks write, the driver commits or aborts |
"""
