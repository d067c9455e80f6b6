"""The node's worker process: started for the first job, fed one job after the other, started again if it dies.

Knows: a child process, the socket between the two, who waits. Refuses to know: what a job is about.
Invariants: a node that has no job has no child. At most `jobs_max` jobs and `queue_bytes_max` bytes wait, counted in the memory
budget of the node; who comes then is refused. What a job gave counts there too until it was used, and no job is begun while that
is more than a share of the budget, or the budget is full. No job waits or runs for ever. A child that dies or takes too long
costs the job it was doing and no other: that one fails with an error that asks to try again, and the next child is started after
a pause that doubles. When this process ends, however it ends, the child does (`worker/__main__.py`).
"""

import asyncio
import contextlib
import logging
import socket
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from braidlog.model.clock import DurationHistogram
from braidlog.model.errors import BrokerError, Reason, StorageFault
from braidlog.model.reporting.node_report import WorkerReport
from braidlog.server.net.memory_budget import Budget
from braidlog.worker.jobs import FRAME, Answer, Buffer, Done, Job, frame, read_outcome

log = logging.getLogger("braidlog.worker")

MODULE: Final = "braidlog.worker"
START_SECONDS_MAX: Final = 60.0
AGAIN_SECONDS_MIN: Final = 0.1
AGAIN_SECONDS_MAX: Final = 10.0
STREAM_BYTES: Final = 1024 * 1024
ANSWERS_PART: Final = 8
"""Of the memory budget, one in so many bytes may be of answers that are still in use when the next job is begun."""
UPKEEP_SECONDS_MAX: Final = 3600.0


class WorkerSettings(msgspec.Struct, frozen=True):
    """Limits of the worker process and of its queue."""

    memory_bytes_max: int = 768 * 1024 * 1024
    """Maximum memory of the process; a job that needs more fails."""
    job_seconds_max: float = 30.0
    """Maximum time of one job; a longer job fails, and the process restarts."""
    wait_seconds_max: float = 30.0
    """Maximum time of a job in the queue; then it fails."""
    jobs_max: int = 1000
    """Maximum jobs in the queue; more are refused."""
    queue_bytes_max: int = 64 * 1024 * 1024
    """Maximum bytes of the queued jobs and of the running job; more are refused."""

    def for_upkeep(self, job_seconds_max: float = UPKEEP_SECONDS_MAX) -> "WorkerSettings":
        """Return settings for compaction: a job writes one new segment, and may wait behind jobs of that size."""
        return msgspec.structs.replace(self, job_seconds_max=job_seconds_max, wait_seconds_max=UPKEEP_SECONDS_MAX)


class OvertimeError(BrokerError):
    """A job took longer than it may; its process was ended."""


class _Waiting:
    """A job, and who waits for it."""

    __slots__ = ("answer", "job", "payload", "timer")

    def __init__(self, job: Job, payload: Buffer, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.payload = payload
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # whoever waited may have gone


class _Child:
    """One life of the process."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer

    @property
    def has_ended(self) -> bool:
        return self._reader.at_eof()

    async def send(self, job: Job, payload: Buffer) -> None:
        self._writer.write(frame(job, payload))
        self._writer.write(payload)
        await self._writer.drain()

    async def receive(self, hold: Callable[[int], None]) -> Answer:
        """What it says; raises what the job raised, or IncompleteReadError when the child has gone. `hold` counts its bytes."""
        message_bytes, payload_bytes = FRAME.unpack(await self._reader.readexactly(FRAME.size))
        outcome = read_outcome(await self._reader.readexactly(message_bytes))
        if not isinstance(outcome, Done):
            raise outcome.error()
        answer = Answer(outcome.number, leave=partial(hold, -payload_bytes))
        hold(payload_bytes)
        answer.payload = await self._reader.readexactly(payload_bytes)
        return answer

    async def end(self) -> int:
        """It holds nothing that is not here as well, so it needs no goodbye."""
        self._writer.close()
        self.kill()
        return await self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class WorkerProcess:
    """One for a node: `do` from anywhere on the loop, `run` in a task."""

    def __init__(self, settings: WorkerSettings, budget: Budget, *, priority: str = "0", name: str = "worker") -> None:
        """`priority`: a niceness, or `IDLE`. `name`: of the process, for the log."""
        self._name = name
        self._settings = settings
        self._priority = priority
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._child: _Child | None = None
        self._is_doing = False
        self._interrupted = ""
        """Why the job under way is being ended."""
        self._pause = 0.0
        self._may_start_at = 0.0
        self.is_over = False
        """The node stops: nothing is done any more."""
        self._bytes = 0
        self._answer_bytes = 0
        self._room = asyncio.Event()
        self.seconds = DurationHistogram()
        """What jobs took, from their beginning to their answer."""
        self.starts = 0
        self.failures = 0
        """Jobs that the process did not answer, or that were refused or waited too long."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def report(self) -> WorkerReport:
        return WorkerReport(
            is_running=self._child is not None,
            jobs=self.seconds.counts,
            jobs_seconds_total=self.seconds.total,
            waiting=len(self._queue),
            waiting_bytes=self._bytes,
            failed=self.failures,
            starts=self.starts,
        )

    # -- who has a job -----------------------------------------------------------------------------------------

    def do(self, job: Job, payload: Buffer) -> "asyncio.Future[Answer]":
        """See `worker/jobs.py`."""
        waiting = _Waiting(job, payload, self._loop)
        held = self._bytes + len(payload)
        if self.is_over:
            self._fail(waiting, "the node stops")
        elif len(self._queue) >= self._settings.jobs_max:
            self._fail(
                waiting, f"{len(self._queue)} jobs wait for the worker process, that is the limit (worker.jobs_max)"
            )
        elif held > self._settings.queue_bytes_max and self._bytes:
            limit = self._settings.queue_bytes_max
            self._fail(waiting, f"{held} bytes would wait for the worker process, {limit} may (worker.queue_bytes_max)")
        else:
            waiting.timer = self._loop.call_later(self._settings.wait_seconds_max, self._overdue, waiting)
            self._queue.append(waiting)
            self._arrived.set()
            self._hold(len(payload))
        return waiting.answer

    def _fail(self, waiting: _Waiting, why: str, kind: type[BrokerError] = BrokerError) -> None:
        self.failures += 1
        waiting.fail(kind(Reason.TIMED_OUT, f"{why}; try again"))

    def _overdue(self, waiting: _Waiting) -> None:
        self._queue.remove(waiting)
        self._hold(-len(waiting.payload))
        self._fail(waiting, f"not begun by the worker process within {self._settings.wait_seconds_max:g} s")

    def interrupt(self, why: str) -> None:
        """End the job under way, as one that took too long, and the process with it; one that is about to begin goes on."""
        if self._is_doing and self._child is not None:
            self._interrupted = why
            self._child.kill()

    # -- what is held, as the budget sees it -------------------------------------------------------------------

    peer = "the worker process's queue"

    def held_bytes(self) -> int:
        return self._bytes + self._answer_bytes

    def _hold(self, more: int) -> None:
        self._bytes += more
        self._budget.note(self, self.held_bytes())

    def _hold_answer(self, more: int) -> None:
        self._answer_bytes += more
        self._budget.note(self, self.held_bytes())
        if more < 0:
            self._room.set()

    def abort(self) -> None:
        """There is no room in the node's memory, and most of what is held is held here: who waits is refused."""
        for waiting in list(self._queue):
            self._drop(waiting, "the node has no memory left for what waits")
        self._loop.call_soon(self._forgotten)

    def _forgotten(self) -> None:
        self._budget.forget(self)
        self._room.set()  # whoever is forgotten is not told of room

    def room_again(self) -> None:
        self._room.set()

    @property
    def _is_short(self) -> bool:
        """Whether what the next job may give has no place."""
        return self._budget.is_full or self._answer_bytes > self._budget.bytes_max // ANSWERS_PART

    async def _wait_for_room(self) -> None:
        """Answers are used up by requests, and those wait for no client meanwhile: it ends."""
        while self._is_short:
            self._room.clear()
            if self._budget.is_full:
                self._budget.wait(self)
            if self._is_short:
                await self._room.wait()

    def _drop(self, waiting: _Waiting, why: str) -> None:
        self._queue.remove(waiting)
        assert waiting.timer is not None
        waiting.timer.cancel()
        self._bytes -= len(waiting.payload)
        self._fail(waiting, why)

    # -- the process -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what comes, until cancelled."""
        try:
            while True:
                while not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                await self._wait_for_room()
                child = await self._ready()
                if child is not None and self._queue:
                    await self._do_next(child)
        finally:
            self.is_over = True
            for waiting in list(self._queue):
                self._drop(waiting, "the node stops")
            await self._end_child()

    async def _ready(self) -> _Child | None:
        """A child that listens; None if it could not be started. After one that died, not before its pause is over."""
        if self._child is not None and self._child.has_ended:
            await self._bury("between jobs")
        if self._child is None:
            await asyncio.sleep(max(self._may_start_at - self._loop.time(), 0))
            try:
                self._child = await self._start()
            except (OSError, EOFError, TimeoutError) as error:
                await self._bury(f"before it was ready ({error})")
        return self._child

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, STREAM_BYTES)
        try:
            numbers = (theirs.fileno(), self._settings.memory_bytes_max)
            command = (sys.executable, "-m", MODULE, *map(str, numbers), self._priority)
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,  # ours has one line for who started us
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.starts += 1
        reader, writer = await asyncio.open_connection(sock=ours, limit=STREAM_BYTES)
        child = self._child = _Child(process, reader, writer)
        async with asyncio.timeout(START_SECONDS_MAX):
            await child.receive(self._hold_answer)
        return child

    async def _do_next(self, child: _Child) -> None:
        waiting = self._queue.popleft()
        assert waiting.timer is not None
        waiting.timer.cancel()
        began = self._loop.time()
        self._is_doing = True
        try:
            async with asyncio.timeout(self._settings.job_seconds_max):
                await child.send(waiting.job, waiting.payload)
                answer = await child.receive(self._hold_answer)
        except (BrokerError, StorageFault, ValueError) as error:  # what the job raised: ProtocolError is a ValueError
            self._answered(began)
            waiting.fail(error)
        except TimeoutError:
            await self._bury(f"after {self._settings.job_seconds_max:g} s with one job")
            why = f"not done by the worker process within {self._settings.job_seconds_max:g} s"
            self._fail(waiting, why, OvertimeError)
        except (OSError, EOFError):
            why, self._interrupted = self._interrupted, ""
            await self._bury("in the middle of a job" + (f": {why}" if why else ""))
            self._fail(waiting, why or "the worker process has ended")
        except asyncio.CancelledError:
            self._fail(waiting, "the node stops")
            raise
        else:
            self._answered(began)
            if not waiting.answer.done():  # who asked may have gone
                waiting.answer.set_result(answer)
        finally:
            self._is_doing = False
            self._hold(-len(waiting.payload))

    def _answered(self, began: float) -> None:
        self._pause = 0.0
        self.seconds.note(self._loop.time() - began)

    async def _bury(self, when: str) -> None:
        """The child is of no use any more. The next one waits: one that dies of everything must not be all we do."""
        code = await self._end_child()
        self._pause = min(max(self._pause * 2, AGAIN_SECONDS_MIN), AGAIN_SECONDS_MAX)
        self._may_start_at = self._loop.time() + self._pause
        log.error(
            "the %s process has ended %s (exit code %s); the next is started in %.1f s",
            self._name,
            when,
            code,
            self._pause,
        )

    async def _end_child(self) -> int | None:
        child, self._child = self._child, None
        return None if child is None else await child.end()
