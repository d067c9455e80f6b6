"""A worker without a process: executes jobs immediately in the caller's thread, for callers without an event loop."""

from braidlog.storage.files import Disk, OsDisk
from braidlog.worker.job_functions import perform
from braidlog.worker.jobs import Answer, Buffer, Job


class Here:
    """See `jobs.Worker`."""

    _disk: Disk = OsDisk()

    def __init__(self, disk: Disk | None = None) -> None:
        if disk is not None:
            self._disk = disk

    async def do(self, job: Job, payload: Buffer) -> Answer:
        return perform(job, payload, self._disk)
