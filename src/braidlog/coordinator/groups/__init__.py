"""Consumer groups: who is in, which generation it is, who reads which partitions.

| file | what |
|---|---|
| `assignors.py` | members and partitions in, assignment out: range, round_robin, sticky |
| `group.py` | one group in which the broker assigns, as a state machine; time is an argument |
| `classic_group.py` | one group whose members elect a leader, which assigns (Kafka's classic protocol); the same |
| `messages.py` | what is said between such a group and its members |
| `registry.py` | the groups of both kinds by name, as the journal keeps them |
| `classic_service.py` | the use case of members of classic groups |
| `service.py` | the use case of members of the others, and what is common: list, describe, lag, expire, delete |
"""
