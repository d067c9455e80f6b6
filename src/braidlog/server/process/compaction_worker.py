"""Runs compactions in a worker process: a thread waits for each segment, and the log stays unchanged until then.

Invariant: a compaction does not depend on the process: if it fails, the calling thread does the rest, from the first
missing segment.
"""

import asyncio
import logging
from concurrent.futures import Future
from typing import Final

import msgspec

from braidlog.model.errors import BrokerError, Reason
from braidlog.server.process.worker_process import WorkerProcess
from braidlog.storage.compaction.compaction_merge import KeyRewriting, Plan, Rewritten
from braidlog.storage.files import Disk
from braidlog.worker.jobs import Answer, RewriteSegments

log = logging.getLogger("braidlog.worker")

LOOK_SECONDS: Final = 1.0
"""How often a waiting thread checks whether the node stops: the loop may then be waiting for the thread."""


class WorkerRewriting:
    """See `storage/compaction/compaction.py`. Call it on a thread, never on the loop's."""

    def __init__(self, worker: WorkerProcess, loop: asyncio.AbstractEventLoop, disk: Disk, plan: Plan) -> None:
        self._worker = worker
        self._loop = loop
        self._disk = disk
        self._plan = plan
        self._here: KeyRewriting | None = None

    def write(self, first: int) -> Rewritten:
        if self._here is None:
            try:
                return self._write_beside(first)
            except BrokerError as error:
                if self._worker.is_over:
                    raise
                log.warning("a compaction in %s is not done by the worker process: %s", self._plan.folder, error)
                self._here = KeyRewriting(self._disk, self._plan)
        return self._here.write(first)

    def _write_beside(self, first: int) -> Rewritten:
        job, payload = RewriteSegments(first), msgspec.msgpack.encode(self._plan)
        answer: Future[Rewritten] = Future()

        def submit() -> None:
            self._worker.do(job, payload).add_done_callback(answered)

        def answered(done: "asyncio.Future[Answer]") -> None:
            error = done.exception()
            if error is not None:
                answer.set_exception(error)
                return
            with done.result() as found:
                answer.set_result(msgspec.msgpack.decode(found.payload, type=Rewritten))

        self._loop.call_soon_threadsafe(submit)
        return self._wait(answer)

    def _wait(self, answer: "Future[Rewritten]") -> Rewritten:
        while True:
            try:
                return answer.result(LOOK_SECONDS)
            except TimeoutError:
                if self._worker.is_over:
                    raise BrokerError(Reason.TIMED_OUT, "the node stops") from None
