"""Front ends in no dialect: topics and their settings, placement, users, rules, authorisation, quotas, keys and values.

Knows: what may be asked for, and by whom. Refuses to know: any wire, any socket, any event loop (waiting is a port).
"""
