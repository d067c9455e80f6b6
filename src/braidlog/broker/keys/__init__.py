"""The key-value service: executes operations on the store of a node without a cluster, or on the replicated logs of
a cluster.

results = await key_service.execute_columns(columns)     # key_service.py
"""
