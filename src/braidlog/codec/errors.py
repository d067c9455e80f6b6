"""The one error of the byte layers.

Knows: that bytes can be wrong, and where. Refuses to know: who sent them and what is answered.
"""


class ProtocolError(ValueError):
    """The bytes are not what their format says they must be.

    Raised by codec and wire only. `position` is the index of the first byte that is wrong, where that is known.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position})")
        self.position = position
