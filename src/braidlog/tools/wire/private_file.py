"""Create files that only their owner can read, since recorded traffic contains passwords, tokens and records."""

import os
import stat
from typing import BinaryIO

OWNER_ONLY = 0o600


def create_private(path: str) -> BinaryIO:
    """Open an empty file for writing, and restrict the permissions of an existing one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # pipes and terminals keep their permissions
            os.fchmod(descriptor, OWNER_ONLY)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "wb")
