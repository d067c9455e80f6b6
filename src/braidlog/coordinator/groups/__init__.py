"""Consumer groups: members, generations, assignments.

| file | what |
|---|---|
| `assignors.py` | assignment strategies: range, round_robin, sticky |
| `group.py` | a group in which the broker assigns, as a state machine; time is an argument |
| `classic_group.py` | a group whose elected leader assigns (Kafka's classic protocol), likewise |
| `messages.py` | messages between a classic group and its members |
| `registry.py` | all groups by name, as the journal stores them |
| `classic_service.py` | operations of classic group members |
| `service.py` | operations of broker-assigned groups, and common ones: list, describe, lag, expire, delete |
"""
