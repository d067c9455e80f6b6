"""Record batches ⇄ Arrow columns, without a Python object for each record.

`records_to_arrow.py` reads the records section of a batch into columns, `arrow_to_records.py` writes columns as records,
`column_blocks.py` sends a run of batches as one block of columns, `json_to_arrow.py` parses JSON values. `arrow.py` makes
`pyarrow.RecordBatch` objects of the results.
"""
