"""The ready pipeline: a topic becomes raw, clean and summed-up tables, topics and keys, on Structured Streaming.

Knows: layers, stages and what each reads and writes. Refuses to know: a scheduler, a shuffle, a window operator: Spark has them.
Invariant: every layer is a topic and every table is a topic written down, so that each stage is one streaming query with one
input, one output and one checkpoint, and what one has written another can read again.

    source topics ──┬─ bronze ────────→ table bronze           every record as it came
                    ├─ silver ────────→ topic <name>.silver     typed, valid, once
                    └─ dead-letters ──→ topic <name>.dead-letters
    <name>.silver ──┬─ silver-table ──→ table silver
                    ├─ gaps ──────────→ table gaps              versions that an aggregate left out
                    ├─ state ─────────→ keys and values         the last event of each key
                    └─ windows ───────→ topic <name>.windows    counts and latencies
    <name>.windows ─── windows-table ─→ table windows
"""
