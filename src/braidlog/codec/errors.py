"""The one error of the byte layers.

Knows: that bytes can be wrong, and where. Refuses to know: who sent them and what is answered.
"""

from typing import Self


class ProtocolError(ValueError):
    """The bytes are not what their format says they must be.

    Raised by codec and wire only. `position` is the index of the first byte that is wrong, where that is known.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position})")
        self.position = position

    def at(self, position: int | None) -> Self:
        """The same error, which now knows where, and says it no differently: what a peer is told stays what it was."""
        if self.position is None:
            self.position = position
        return self


class TooManyPartsError(ProtocolError):
    """A message whose arrays have more items than are read: its frame is whole, and the next one can be read."""
