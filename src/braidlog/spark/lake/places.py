"""Folders of a table whose names outlive a power cut.

Knows: `Disk`. Refuses to know: what is put into them.
Invariant: when a folder is given out, every name on the way to it is durable.
"""

import os

from braidlog.spark.lake.object_files import is_uri
from braidlog.storage.files import Disk, join, parent


def whole(path: str) -> str:
    """The one name by which a file is known; a URI is one."""
    return path if is_uri(path) else os.path.abspath(path)


def make_folders(disk: Disk, root: str, relative: str) -> None:
    """Make `root` and the folders of `relative` in it, and make all their names durable.

    Also of those that are there: they may have been made by a process that was killed before it synced.
    """
    missing = [root]
    while not disk.exists(parent(missing[-1])):
        missing.append(parent(missing[-1]))
    folders = missing[::-1]
    for name in filter(None, relative.split("/")):
        folders.append(join(folders[-1], name))
    for folder in folders:
        disk.make_folder(folder)
        disk.sync_folder(parent(folder))
