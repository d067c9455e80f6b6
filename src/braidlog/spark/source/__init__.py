"""Topics as a Spark source: `spark.read.format("braidlog")` and `spark.readStream.format("braidlog")`.

| file | contents |
|---|---|
| `options.py` | the options, and the query that they describe |
| `positions.py` | offsets as Spark stores them, and where a query begins and ends |
| `planning.py` | how much a trigger reads, split into tasks: numbers only |
| `losses.py` | records that were deleted before they were read, and the policies for them |
| `logs.py` | a driver's requests: to a server, or a folder |
| `chunks.py` | an executor's reads: whole batches, prefetched |
| `columns.py`, `values.py` | converts batches to the columns of a query |
| `readers.py` | Spark's interface |
"""
