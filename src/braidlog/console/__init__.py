"""The web console and the admin port: what a node does, for people and for their monitoring.

Knows: HTTP, and the node as a client does. Refuses to know: the inside of a server. Runs in a process of its own.
"""
