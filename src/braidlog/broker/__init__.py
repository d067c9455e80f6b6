"""Protocol-independent services: topics, settings, placement, users, access rules, authorization, quotas, keys and
values.

Does not handle: wire protocols, sockets, the event loop (waiting goes through the `Runtime` port).
"""
