"""Creates a table's folders so that their names survive a power cut.

Every folder on the path is durable when the function returns. Does not handle: files.
"""

import os

from braidlog.spark.lake.object_files import is_uri
from braidlog.storage.files import Disk, join, parent


def whole(path: str) -> str:
    """Return the absolute name of a file; URIs are returned unchanged."""
    return path if is_uri(path) else os.path.abspath(path)


def make_folders(disk: Disk, root: str, relative: str) -> None:
    """Create `root` and the folders of `relative` in it, and make all their names durable.

    Existing folders are synced too: they may have been created by a process that was killed before it synced.
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
