"""What a simulated cluster has promised of its metadata, and where the promises of each partition are kept.

Knows: what each entry of the metadata made. `BrokenPromise` says which promise does not hold, and how it showed itself.
"""

from typing import TYPE_CHECKING

import msgspec
from tests.simulation.partition_promises import BrokenPromise, PartitionPromises
from tests.simulation.simulated_messages import assignments

from braidlog.cluster.metadata.image import Image

if TYPE_CHECKING:
    from tests.simulation.universe import Universe

__all__ = ["BrokenPromise", "Promises"]


class Promises:
    """The memory that no node has."""

    def __init__(self, universe: "Universe", names: list[str]) -> None:
        self.partitions = {name: PartitionPromises(universe, name) for name in names}
        self._made: dict[int, bytes] = {}

    def __getitem__(self, name: str) -> PartitionPromises:
        return self.partitions[name]

    def applied(self, node: int, seq: int, image: Image) -> None:
        """All nodes make the same of the same entries."""
        made = msgspec.json.encode(image, order="sorted")
        known = self._made.setdefault(seq, made)
        if known is not made:
            if known != made:
                raise BrokenPromise(f"node {node} makes another image of entry {seq} than others did")
            return
        for name, assignment in assignments(image).items():
            self.partitions[name].assigned(seq, assignment)
