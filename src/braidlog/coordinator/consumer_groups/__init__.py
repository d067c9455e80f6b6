"""Consumer groups whose members report to the coordinator, which divides the work and moves one partition at a time.

| file | what |
|---|---|
| `messages.py` | what is said between such a group and its members, and what is kept of them |
| `assignors.py` | members and partitions in, target out: uniform and range |
| `subscriptions.py` | which topics the members want: by name, by pattern |
| `group.py` | one group as a state machine: each step gives a change, which is kept and then applied |
| `service.py` | the use case: heartbeats, commits, time |
"""
