"""What is computed beside the node's loop, in a process of its own: jobs, how each is done, the process that does them.

`jobs.py` is what others import; `server/process/worker_process.py` keeps the process.
"""
