"""Cursus meets the services.

| file | what |
|---|---|
| `handlers.py` | the adapter and its routes; topics, groups and commits, the connection itself |
| `producing.py` | batches and PUBLISH: partitions chosen, sequences mapped |
| `reading.py` | CONSUME and STREAM |
| `events.py` | the event store |
| `transactions.py` | transactions |
| `records.py` | this dialect's records and the log's, both ways |
| `served.py` | its connection as a session serves it: a stream waits for what was asked before it |
| `errors.py` | what each reason is called here |
"""
