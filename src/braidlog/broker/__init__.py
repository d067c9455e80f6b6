"""Services in no dialect: one use case a file.

Knows: topics, appends, fetches, offsets, groups, streams of events, transactions, who may do what. Refuses to know: any wire, any
socket, any event loop (waiting is a port). May import: cluster, replication, storage, model, codec; never wire.

| file | use case |
|---|---|
| `ports.py` | what the services need of the world: durability, waking, time |
| `hosted.py` | a partition as this node hosts it: role, replicas, high watermark |
| `topics.py` | create, delete, list, describe, grow, alter; the way to a hosted partition |
| `brokers.py` | the brokers that an administrator made known |
| `append.py` | append with acks 0, 1, all |
| `fetch.py` | fetch with long poll and byte limits; offsets by time |
| `offsets.py` | committed offsets |
"""
