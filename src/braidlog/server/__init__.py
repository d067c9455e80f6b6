"""The server: asyncio lives here and nowhere below.

Knows: sockets, tasks, timers, threads beside the loop, configuration, and how everything is put together (`node.py` alone).
Refuses to know: any dialect's bytes. May import: adapters and below.

| file | what |
|---|---|
| `event_loop_runtime.py` | the ports of the services on an event loop: durability, waking, time |
| `scheduler.py` | run a handler at once; what has to wait is resumed by the loop, in fair turns |
| `session.py` | one connection: reads requests, serves them, sends their answers in order |
| `pending_requests.py` | its requests under way, and those whose answers wait for their turn |
| `send_queue.py` | what is ready to be sent, the transport, back-pressure |
| `client_quota.py` | what its client is charged, and for how long nothing is read |
| `connection_activity.py` | when it was heard of last, and began to close |
| `admission.py` | its first steps, until its client is known |
| `memory_budget.py` | what all connections hold in memory together, and who is let go |
| `connection_limits.py` | how many connections there are, and which one gives way at the limit; what one may use |
| `file_descriptors.py` | how many files and sockets the process may have open |
| `unauthenticated_limits.py` | how many unauthenticated clients there may be, and what they may do |
| `listener.py` | a port: accepts, TLS, sweeps away who is too slow |
| `log_rate_limit.py` | lines about clients, within bounds |
| `config.py` | settings from file, environment and flags, with their origin |
| `session_owner.py` | the listener as its sessions know it: what they count together |
| `node_reporter.py` | what the node says about itself: counters and states, gathered when asked |
| `connection_tap.py` | one connection, watched for a while from beside it |
| `console_process.py` | the console's process: started, answered, started again |
| `node.py` | the only place that wires things together |
"""
