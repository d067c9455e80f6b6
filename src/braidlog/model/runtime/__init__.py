"""Time, waiting and background work as ports: what services need of the event loop, without the event loop.

`Runtime` (runtime.py) is the port. `server/event_loop_runtime.py` implements it with asyncio; tests use a manual one.

    await runtime.durable(log, offset)     # wait for a shared sync
    async with locks.held("orders"): ...   # keyed_lock.py: one task at a time for each key
"""
