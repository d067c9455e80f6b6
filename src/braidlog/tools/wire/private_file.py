"""A file that only its owner may read: what was said on a wire holds passwords, tokens and other people's records."""

import os
import stat
from typing import BinaryIO

OWNER_ONLY = 0o600


def create_private(path: str) -> BinaryIO:
    """Open a file for writing, empty. One that was there, and could be read by others, is theirs no more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe or a terminal stays as it is
            os.fchmod(descriptor, OWNER_ONLY)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "wb")
