"""Runs a worker process of the node: starts it with the first job, sends it jobs one by one, restarts it if it dies.

Invariants: at most `jobs_max` jobs and `queue_bytes_max` bytes wait, counted in the node's memory budget; more are
refused. Results count there too until they are used. No job starts while results hold more than a share of the budget,
or the budget is full. Every wait and every job has a time limit. A child that dies or takes too long fails only its
current job, with a retriable error; the next child starts after a delay that doubles. When this process ends in any
way, the child ends (`worker/__main__.py`). Does not handle: the content of jobs.
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
"""No job starts while unused results hold more than 1/8 of the memory budget."""
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
    """A job exceeded its time limit; its process was killed."""


class _Waiting:
    """A queued job and the future of its result."""

    __slots__ = ("answer", "job", "payload", "timer")

    def __init__(self, job: Job, payload: Buffer, loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self.payload = payload
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # mark it retrieved: the waiter may have been cancelled


class _Child:
    """One run of the process."""

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
        """Return the result, counted by `hold`. Raises the job's error, or IncompleteReadError if the child died."""
        message_bytes, payload_bytes = FRAME.unpack(await self._reader.readexactly(FRAME.size))
        outcome = read_outcome(await self._reader.readexactly(message_bytes))
        if not isinstance(outcome, Done):
            raise outcome.error()
        answer = Answer(outcome.number, leave=partial(hold, -payload_bytes))
        hold(payload_bytes)
        answer.payload = await self._reader.readexactly(payload_bytes)
        return answer

    async def end(self) -> int:
        """Kill the child: it holds no state that the node lacks."""
        self._writer.close()
        self.kill()
        return await self.process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class WorkerProcess:
    """Call `do` anywhere on the loop, and `run` in a task."""

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
        """Why the current job is being interrupted."""
        self._pause = 0.0
        self._may_start_at = 0.0
        self.is_over = False
        """Whether the node stops: new jobs are refused."""
        self._bytes = 0
        self._answer_bytes = 0
        self._room = asyncio.Event()
        self.seconds = DurationHistogram()
        """Durations of jobs, from start to result."""
        self.starts = 0
        self.failures = 0
        """Jobs that got no result: the process died, or they were refused or waited too long."""

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

    # -- callers -----------------------------------------------------------------------------------------------

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
        """Kill the process and fail its current job as one that took too long; queued jobs are unaffected."""
        if self._is_doing and self._child is not None:
            self._interrupted = why
            self._child.kill()

    # -- a holder of the memory budget -------------------------------------------------------------------------

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
        """The memory budget is exceeded and this queue holds most: fail all waiting jobs."""
        for waiting in list(self._queue):
            self._drop(waiting, "the node has no memory left for what waits")
        self._loop.call_soon(self._forgotten)

    def _forgotten(self) -> None:
        self._budget.forget(self)
        self._room.set()  # the budget does not call `room_again` of a removed holder

    def room_again(self) -> None:
        self._room.set()

    @property
    def _is_short(self) -> bool:
        """Whether there is no room for the result of another job."""
        return self._budget.is_full or self._answer_bytes > self._budget.bytes_max // ANSWERS_PART

    async def _wait_for_room(self) -> None:
        """Wait for room. The wait ends: requests use up results without waiting for a client."""
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
        """Run jobs until cancelled."""
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
        """Return a running child, or None if it could not start. After a failure it waits for the restart delay."""
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
                stdout=asyncio.subprocess.DEVNULL,  # the node's own output is one line, for its caller
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
        except (BrokerError, StorageFault, ValueError) as error:  # raised by the job: ProtocolError is a ValueError
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
            if not waiting.answer.done():  # the caller may have been cancelled
                waiting.answer.set_result(answer)
        finally:
            self._is_doing = False
            self._hold(-len(waiting.payload))

    def _answered(self, began: float) -> None:
        self._pause = 0.0
        self.seconds.note(self._loop.time() - began)

    async def _bury(self, when: str) -> None:
        """End a failed child, and delay the next one: a child that always dies must not keep the node busy."""
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
