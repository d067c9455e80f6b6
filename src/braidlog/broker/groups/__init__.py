"""Consumer groups: who is in, which generation it is, who reads which partitions.

| file | what |
|---|---|
| `assignors.py` | members and partitions in, assignment out: range, round_robin, sticky |
| `group.py` | one group as a state machine; time is an argument |
| `service.py` | the use case: groups by name, durable, expiring |
"""
