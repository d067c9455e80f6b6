"""The worker process: jobs that would block the node's event loop, their functions, and the process that runs them.

Other packages import `jobs.py` only; `server/process/worker_process.py` runs the process.
"""
