"""The server: sockets, tasks, timers, configuration, and the composition of a node.

asyncio is used here and nowhere below. Does not handle: bytes of a dialect. May import: adapters and below.

| file | what |
|---|---|
| `event_loop_runtime.py` | the services' runtime on an event loop: durability, wakeups, time |
| `scheduler.py` | runs a handler immediately; resumes waiting work in fair turns |
| `session.py` | one connection: reads requests, serves them, sends their answers in order |
| `pending_requests.py` | a connection's requests in progress, and answers that wait for earlier ones |
| `send_queue.py` | answers ready to be sent, the transport, back-pressure |
| `client_quota.py` | charges a client's quotas and throttles it |
| `connection_activity.py` | when a connection was last active, and when it began to close |
| `admission.py` | a connection until its client has authenticated |
| `memory_budget.py` | memory of all connections together; closes the largest when it is exceeded |
| `connection_limits.py` | limits on the number of connections, and the limits of one connection |
| `file_descriptors.py` | limits on open files and sockets |
| `unauthenticated_limits.py` | limits on unauthenticated connections |
| `listener.py` | a port: accepts, TLS, closes overdue connections |
| `log_rate_limit.py` | limits the rate of log lines about clients |
| `config.py` | settings from file, environment and flags, with their origin |
| `session_owner.py` | what a session needs of its listener: shared counters and the scheduler |
| `node_reporter.py` | counters and states of the node, for the console and other nodes |
| `connection_tap.py` | captures the traffic of one open connection |
| `console_process.py` | starts the console's process, answers it, restarts it |
| `node.py` | composes a node: the only place that wires parts together |
"""
