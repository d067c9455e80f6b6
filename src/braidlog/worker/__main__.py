"""`python -m braidlog.worker CHANNEL BYTES PRIORITY`: the worker process, started by a node with an inherited socket.

Does not handle: the network, the node's state, files that no job names. It uses at most BYTES of memory: a larger job
fails, and the next one is processed. It ends when its node does: between jobs it reads an end of file, during a job
the kernel kills it.
"""

import ctypes
import os
import resource
import signal
import socket
import sys

from braidlog.model.errors import BrokerError, ProtocolError, Reason, StorageFault
from braidlog.storage.files import OsDisk
from braidlog.worker.job_functions import perform
from braidlog.worker.jobs import FRAME, IDLE, MESSAGE_BYTES_MAX, Done, Failed, Job, frame, read_job

_PR_SET_PDEATHSIG = 1  # prctl.h
_DISK = OsDisk()
DISCARD_BYTES = 64 * 1024


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    bytes_max = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the node, which stops this process last
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    take_priority(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, bytes_max))
    channel.sendall(frame(Done(), b""))  # ready
    serve(channel, bytes_max)


def take_priority(priority: str) -> None:
    """Set the niceness; or `idle`: use CPU and disk only when they are otherwise unused, and yield immediately."""
    if priority == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the kernel derives the I/O class from it
    else:
        os.nice(int(priority))


def serve(channel: socket.socket, bytes_max: int) -> None:
    """Process jobs one after the other until the channel closes."""
    while head := _receive(channel, FRAME.size):
        message_bytes, payload_bytes = FRAME.unpack(head)
        assert message_bytes <= MESSAGE_BYTES_MAX
        message = _receive(channel, message_bytes)
        payload = bytearray()
        try:
            payload = _receive(channel, payload_bytes)
            if len(payload) < payload_bytes:
                return
            outcome, result = _do(read_job(message), payload)
        except MemoryError:
            if not payload:
                _discard(channel, payload_bytes)
            text = f"the job needs more memory than the worker may use ({bytes_max} bytes); see worker.memory_bytes_max"
            outcome, result = Failed(Reason.RECORD_TOO_LARGE.name, text), b""
        channel.sendall(frame(outcome, result))
        channel.sendall(result)
        del payload, result  # an idle worker holds no job's memory


def _do(job: Job, payload: bytearray) -> tuple[Done | Failed, bytes]:
    try:
        answer = perform(job, payload, _DISK)
    except BrokerError as error:
        return Failed(error.reason.name, str(error)), b""
    except ProtocolError as error:
        return Failed(None, str(error)), b""
    except StorageFault as fault:
        return Failed(None, str(fault), is_fault=True), b""
    return Done(answer.number), answer.payload


def _receive(channel: socket.socket, size: int) -> bytearray:
    """Read this many bytes; fewer if the channel closes first."""
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        received = channel.recv_into(view[filled:])
        if not received:
            view.release()
            del data[filled:]
            break
        filled += received
    return data


def _discard(channel: socket.socket, size: int) -> None:
    """Read this many bytes without keeping them: the next job follows them."""
    while size and (received := channel.recv(min(size, DISCARD_BYTES))):
        size -= len(received)


if __name__ == "__main__":
    main()
