"""Computations outside the node's event loop, in a separate process: jobs, their implementation, the process.

Other packages import `jobs.py`; `server/process/worker_process.py` starts the process.
"""
