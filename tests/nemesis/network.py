"""A network of the nodes' own: each in a namespace with one address, all on a bridge; cuts in one direction, slow links.

A cut is a neighbour whose hardware address nobody has: packets leave and arrive nowhere, as in a network that is broken, and the
sender is told nothing. It needs root and iproute2. The namespaces have no names: when the last process in them has ended, however
that was, they are gone. Where they cannot be made, all nodes are on loopback, and `reason` says why.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_NOBODY = "02:00:00:00:ff:ff"
_SLOW = ("rate", "400kbit", "burst", "8kb", "latency", "300ms")
Found = TypeVar("Found")


class Network:
    """Made by a process that has no second thread yet: it moves to the hub, from which every node is reached."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = tuple(numbers)
        self._namespaces: dict[int, int] = {}
        self._slowed: set[int] = set()
        self.reason = ""
        self.reason = self._make()

    def _make(self) -> str:
        if os.geteuid() != 0:
            return "only root may make network namespaces"
        missing = [each for each in ("ip", "tc", "nsenter") if shutil.which(each) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        try:
            self._namespaces = {number: _new_namespace() for number in self._numbers}
            _new_namespace()
            self._connect()
        except OSError as error:
            return f"no network of its own: {error}"
        except subprocess.CalledProcessError as error:
            return f"{' '.join(error.cmd)}: {error.stderr.decode(errors='replace').strip()}"
        return ""

    def _connect(self) -> None:
        _run("ip", "link", "add", "hub", "type", "bridge")
        _run("ip", "address", "add", "10.77.0.254/24", "dev", "hub")
        _run("ip", "link", "set", "hub", "up")
        for number in self._numbers:
            end = ("peer", "name", "eth0", "address", _hardware(number), "netns", self._path(number))
            _run("ip", "link", "add", f"node{number}", "type", "veth", *end)
            _run("ip", "link", "set", f"node{number}", "master", "hub", "up")
            self._inside(number, "ip", "address", "add", f"{self._address(number)}/24", "dev", "eth0")
            self._inside(number, "ip", "link", "set", "eth0", "up")
        self.heal()

    @staticmethod
    def _address(number: int) -> str:
        return f"10.77.0.{number}"

    def host(self, number: int) -> str:
        return "127.0.0.1" if self.reason else self._address(number)

    def prefix(self, number: int) -> list[str]:
        """Before a command that shall run where this node is."""
        return [] if self.reason else ["nsenter", f"--net={self._path(number)}"]

    def _path(self, number: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self._namespaces[number]}"

    def _inside(self, number: int, *command: str) -> None:
        _run("nsenter", f"--net={self._path(number)}", *command)

    def call(self, number: int, work: Callable[[], Found]) -> Found:
        """What `work` returns, done where this node is."""
        if self.reason:
            return work()
        answers: list[Found] = []
        errors: list[OSError] = []

        def enter() -> None:
            try:
                _system_call("setns", self._namespaces[number], _NEW_NETWORK)
                answers.append(work())
            except OSError as error:
                errors.append(error)

        thread = threading.Thread(target=enter)  # a thread of its own: it alone moves, and ends there
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]

    # -- faults ------------------------------------------------------------------------------------------------

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing that one sends reaches the other any more; the way back is as it was."""
        self._lead(sender, receiver, _NOBODY)

    def _lead(self, sender: int, receiver: int, hardware: str) -> None:
        where = (self._address(receiver), "lladdr", hardware, "dev", "eth0", "nud", "permanent")
        self._inside(sender, "ip", "neighbour", "replace", *where)

    def slow(self, number: int) -> None:
        """50 KB a second for everything this node sends; what waits longer than 300 ms is lost."""
        self._inside(number, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *_SLOW)
        self._slowed.add(number)

    def heal(self) -> None:
        if self.reason:
            return
        for sender in self._namespaces:
            for receiver in self._namespaces:
                if sender != receiver:
                    self._lead(sender, receiver, _hardware(receiver))
        for number in self._slowed:
            self._inside(number, "tc", "qdisc", "delete", "dev", "eth0", "root")
        self._slowed.clear()


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _new_namespace() -> int:
    """This thread is in it from now on; the descriptor keeps it when the thread has left."""
    _system_call("unshare", _NEW_NETWORK)
    _run("ip", "link", "set", "lo", "up")
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _system_call(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
