"""The server: asyncio lives here and nowhere below.

Knows: sockets, tasks, timers, threads beside the loop, configuration, and how everything is put together (`compose.py` alone).
Refuses to know: any dialect's bytes. May import: adapters and below.

| file | what |
|---|---|
| `world.py` | the ports of the services on an event loop: durability, waking, time |
| `scheduler.py` | run a handler at once; what has to wait is resumed by the loop, in fair turns |
| `session.py` | one connection: reading requests, who the client is, when it ends |
| `session_turns.py` | its requests under way, answers in order, streams |
| `session_output.py` | what it sends, back-pressure, quotas |
| `budget.py` | what all connections hold in memory together, and who is let go |
| `connection_limits.py` | how many connections there are, and which one gives way at the limit; what one may use |
| `descriptors.py` | how many files and sockets the process may have open |
| `gatekeeper.py` | how many unauthenticated clients there may be, and what they may do |
| `listener.py` | a port: accepts, TLS, sweeps away who is too slow |
| `logs.py` | lines about clients, within bounds |
| `config.py` | settings from file, environment and flags, with their origin |
| `request_counters.py` | what the sessions of a listener count together |
| `reporting.py` | what the node says about itself: counters and states, gathered when asked |
| `connection_tap.py` | one connection, watched for a while from beside it |
| `console.py` | the console's process: started, answered, started again |
| `compose.py` | the only place that wires things together |
"""
