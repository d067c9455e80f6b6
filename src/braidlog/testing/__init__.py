"""The shipped test kit: a manual clock, a disk with injected faults, a node in a separate process.

Only the plugin needs pytest. A node is started through its command line.
"""
