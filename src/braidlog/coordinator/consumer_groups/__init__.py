"""Consumer groups of the new protocol (KIP-848): the coordinator assigns, and moves one partition at a time.

| file | what |
|---|---|
| `messages.py` | messages between group and members, and the stored state of members |
| `assignors.py` | assignment strategies: uniform and range |
| `subscriptions.py` | subscribed topics, by name and by pattern |
| `group.py` | one group as a state machine: each step returns a change, which is journalled and then applied |
| `service.py` | operations: heartbeats, commits, expiry |
"""
