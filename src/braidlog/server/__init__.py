"""The server: asyncio lives here and nowhere below.

Knows: sockets, tasks, timers, threads beside the loop, configuration, and how everything is put together (`compose.py` alone).
Refuses to know: any dialect's bytes. May import: adapters and below.

| file | what |
|---|---|
| `world.py` | the ports of the services on an event loop: durability, waking, time |
| `eager.py` | run a handler at once, and make it a task only if it has to wait |
| `session.py` | one connection: bytes in, requests served, answers out in order, limits kept |
| `budget.py` | what all connections hold in memory together, and who is let go |
| `census.py` | how many connections there are, in all and from each address |
| `descriptors.py` | how many files and sockets the process may have open |
| `doorkeeper.py` | who has not said yet who it is, and what it may do |
| `listener.py` | a port: accepts, TLS, sweeps away who is too slow |
| `logs.py` | lines about clients, within bounds |
| `supervisor.py` | tasks with an owner |
| `config.py` | settings from file, environment and flags, with their origin |
| `tally.py` | what the sessions of a listener count together |
| `reporting.py` | what the node says about itself: counters and states, gathered when asked |
| `watching.py` | one connection, watched for a while from beside it |
| `console.py` | the console's process: started, answered, started again |
| `compose.py` | the only place that wires things together |
"""
