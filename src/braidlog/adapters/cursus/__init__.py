"""Cursus's adapter.

| file | what |
|---|---|
| `handlers.py` | the adapter and its routes; topics, groups and commits, the connection itself |
| `producing.py` | batches and PUBLISH: partitions chosen, sequences mapped |
| `reading.py` | CONSUME and STREAM |
| `events.py` | the event store |
| `transactions.py` | transactions |
| `records.py` | conversion between Cursus records and log records |
| `served.py` | the connection of a session: a stream waits for earlier requests |
| `errors.py` | the error code of each reason |
"""
