"""A worker without a process: jobs are done at once, where they are given. For who has no loop to keep free."""

from braidlog.worker.jobs import Answer, Buffer, Job
from braidlog.worker.perform import perform


class Here:
    """See `jobs.Worker`."""

    async def do(self, job: Job, payload: Buffer) -> Answer:
        return perform(job, payload)
