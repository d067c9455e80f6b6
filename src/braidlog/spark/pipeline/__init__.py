"""The ready-made pipeline: a topic becomes raw, clean and aggregated tables, topics and keys, on Structured Streaming.

Spark provides the scheduler, shuffles and window operators. Every layer is a topic and every table is a stored topic.
So each stage is one streaming query with one input, one output and one checkpoint, and any stage's output can be read
again.

    source topics ──┬─ bronze ────────→ table bronze           every record as it came
                    ├─ silver ────────→ topic <name>.silver     typed, valid, once
                    └─ dead-letters ──→ topic <name>.dead-letters
    <name>.silver ──┬─ silver-table ──→ table silver
                    ├─ gaps ──────────→ table gaps              versions that an aggregate left out
                    ├─ state ─────────→ keys and values         the last event of each key
                    └─ windows ───────→ topic <name>.windows    counts and latencies
    <name>.windows ─── windows-table ─→ table windows
"""
