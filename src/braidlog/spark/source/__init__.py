"""Topics as a Spark source: `spark.read.format("braidlog")` and `spark.readStream.format("braidlog")`.

| file | what it knows |
|---|---|
| `options.py` | the options, and what a query is that they describe |
| `positions.py` | offsets as Spark keeps them, and where a query begins and ends |
| `planning.py` | how much a trigger takes and into how many tasks it is cut: numbers only |
| `losses.py` | what was gone before it was read, and what is done about it |
| `logs.py` | what a driver asks: a server, or a folder |
| `chunks.py` | what an executor reads: whole batches, a few of them ahead |
| `columns.py`, `values.py` | batches to the columns that a query wants |
| `readers.py` | Spark's interface, made of the above |
"""
