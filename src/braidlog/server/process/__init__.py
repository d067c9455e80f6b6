"""The node as a process: memory, file descriptors, disk reserve, systemd, and its child processes."""
