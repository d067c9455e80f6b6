"""The files of a segment are removed together, what is derived from it first."""

from braidlog.storage.files import Disk, join
from braidlog.storage.head import index_name, log_name, state_name
from braidlog.storage.pool import FilePool


def remove_segment(disk: Disk, folder: str, pool: FilePool, base_offset: int) -> None:
    for name in (state_name(base_offset), index_name(base_offset), log_name(base_offset)):
        path = join(folder, name)
        pool.drop(path)
        if disk.exists(path):
            disk.remove(path)
