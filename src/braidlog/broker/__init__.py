"""Services in no dialect: one use case a file.

Knows: topics, appends, fetches, offsets, groups, streams of events, transactions, who may do what. Refuses to know: any wire, any
socket, any event loop (waiting is a port). May import: cluster, replication, storage, model, codec; never wire.

| file | use case |
|---|---|
| `ports.py` | what the services need of the world: durability, waking, time |
| `hosted.py` | a partition as this node hosts it: role, replicas, high watermark |
| `topics.py` | create, delete, list, describe, grow, alter; the way to a hosted partition |
| `configs.py` | a topic's settings: describe, alter, back to the default |
| `trim.py` | delete records below an offset |
| `brokers.py` | the brokers that an administrator made known |
| `append.py` | append with acks 0, 1, all |
| `fetch.py` | fetch with long poll and byte limits; offsets by time |
| `offsets.py` | committed offsets |
| `groups/` | consumer groups: members, generations, assignments |
| `producers.py` | producer ids, each given once |
| `transactions.py` | records and offsets that count together or not at all |
| `streams.py` | event streams: versions by key, snapshots |
| `authenticate.py` | whether someone is who it says; wrong guesses are slow |
| `authorize.py` | who may do what |
| `rules.py` | rules added at run time |
| `users.py` | users with passwords |
| `quotas.py` | how many bytes a second each may move |
| `metrics.py` | what the services count |
| `turns.py` | one at a time, in order: how a service changes state across a wait |
| `services.py` | all of them, opened together |
"""
