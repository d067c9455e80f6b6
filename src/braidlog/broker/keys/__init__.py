"""The key-value service: operations in, results out, on a lone node or on the replicated logs of a cluster.

results = await key_service.execute_burst(columns)     # key_service.py
"""
