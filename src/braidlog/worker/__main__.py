"""`python -m braidlog.worker CHANNEL BYTES PRIORITY`: the process, with a socket that its node has made. Not for people to start.

Knows: one socket, one job at a time, when to end. Refuses to know: the network, the state of the node, files that no job names.
Invariants: it takes no more than BYTES of memory (a job that needs more fails, and the next one is done); it ends when its node
does, by whatever death: between jobs its channel reads an end of file, in the middle of one the kernel ends it.
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


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    bytes_max = int(sys.argv[2])
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the node, which ends this process when it has ended itself
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    take_priority(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_max, bytes_max))
    channel.sendall(frame(Done(), b""))  # ready
    serve(channel, bytes_max)


def take_priority(wanted: str) -> None:
    """Niceness; or `idle`: processor and disk when nobody else wants them, and whoever wakes up has the processor at once."""
    if wanted == IDLE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the kernel takes the class of its I/O from that
    else:
        os.nice(int(wanted))


def serve(channel: socket.socket, bytes_max: int) -> None:
    """Do one job after the other until the channel ends."""
    while head := _receive(channel, FRAME.size):
        message_bytes, payload_bytes = FRAME.unpack(head)
        assert message_bytes <= MESSAGE_BYTES_MAX
        message = _receive(channel, message_bytes)
        payload = _receive(channel, payload_bytes)
        if len(payload) < payload_bytes:
            return
        try:
            outcome, found = _do(read_job(message), payload)
        except MemoryError:
            text = (
                f"the job takes more memory than the worker may have ({bytes_max} bytes); see worker.memory_bytes_max"
            )
            outcome, found = Failed(Reason.RECORD_TOO_LARGE.name, text), b""
        channel.sendall(frame(outcome, found))
        channel.sendall(found)
        del payload, found  # an idle worker holds nothing


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
    """So many bytes; fewer when the channel ends first."""
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


if __name__ == "__main__":
    main()
