"""The Python client: one Producer, Consumer and Admin over each of the dialects.

Knows: delivery, groups, reconnection. Refuses to know: the broker's inside; it speaks to any server of a dialect.
`braidlog.connect` blocks, `braidlog.aio.connect` is for asyncio; the names are the same. Start at `drivers/contract.py`
for what a dialect can do, at `engine/delivery.py` for what an acknowledgement means.
"""
