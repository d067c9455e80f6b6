"""Topics as a Spark sink: rows of a DataFrame become records, each once, whatever is killed in between.

How a batch counts once is the broker's affair (docs/adr/0029-sink-batches.md).

| file | what it knows |
|---|---|
| `options.py` | what can be set |
| `columns.py` | what a row may hold |
| `filling.py` | how columns become batches, and which row goes where |
| `task.py` | what a task does: its rows into a stage |
| `writers.py` | Spark's interface: tasks write, the driver commits or aborts |
"""
