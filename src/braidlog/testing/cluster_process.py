"""Runs several real nodes over one etcd, each in its own process: start, kill, restart.

Every started process is stopped, whatever the test does. Does not handle: starting etcd.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from braidlog.testing.server import ServerProcess

NODES = (1, 2, 3)


class ClusterProcess:
    """`with ClusterProcess(folder, etcd_url) as cluster:`; `cluster[2]` is a node, `cluster.url("kafka")` names all of them.

    Each node is in its own rack: `rack-2`.
    """

    def __init__(
        self,
        folder: Path,
        etcd_url: str,
        *arguments: str,
        numbers: Sequence[int] = NODES,
        prefix: str = "braidlog",
        admin: bool = False,
    ) -> None:
        shared = ("--set", f"cluster.etcd={etcd_url}", "--set", f"cluster.prefix={prefix}", *arguments)
        self.nodes = {
            number: ServerProcess(
                folder / f"node-{number}",
                *("--set", f"node={number}", "--set", f"cluster.rack=rack-{number}"),
                *shared,
                admin=admin,
            )
            for number in numbers
        }
        self._stack = ExitStack()

    def __getitem__(self, number: int) -> ServerProcess:
        return self.nodes[number]

    def url(self, dialect: str) -> str:
        """Return a URL with the addresses of all nodes, running or not."""
        return f"{dialect}://" + ",".join(f"127.0.0.1:{node.ports[dialect]}" for node in self.nodes.values())

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            self._stack.push(node)
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:  # each start waits for its own process
                list(pool.map(ServerProcess.start, self.nodes.values()))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
