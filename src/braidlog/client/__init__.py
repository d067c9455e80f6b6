"""The Python client: `Producer`, `Consumer` and `Admin` for each dialect.

`braidlog.connect` blocks; `braidlog.aio.connect` is for asyncio. Both have the same names. See `drivers/contract.py`
for the capabilities of a dialect, and `engine/delivery.py` for the meaning of an acknowledgement.
"""
