"""The error type of the byte layers."""

from typing import Self


class ProtocolError(ValueError):
    """The bytes violate their format.

    Raised by codec and wire only. `position` is the index of the first invalid byte, if known.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position})")
        self.position = position

    def at(self, position: int | None) -> Self:
        """Return the error with this position. The message is unchanged, so that the peer receives the same text."""
        if self.position is None:
            self.position = position
        return self


class TooManyPartsError(ProtocolError):
    """A message whose arrays exceed the limit of items. Its frame is complete, so the next one can be read."""
