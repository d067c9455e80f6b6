"""The saved state of a partition: two slots, written in turn.

Knows: which image was saved last, and whether a failed save left the slots in doubt. Refuses to know: when to save.
Invariant: two images never overtake each other, and an image that was saved in full is the one that is built upon.
"""

import threading
from collections.abc import Callable

from braidlog.storage.slots import SlotPair
from braidlog.storage.state import StateImage, encode_image


class Checkpoints:
    def __init__(self, slots: SlotPair, saved: StateImage) -> None:
        self._slots = slots
        self._saved = saved
        self._lock = threading.Lock()  # taken last: whoever holds it asks for no other
        self.version = 0
        self.in_doubt = False

    def save(self, make: Callable[[StateImage], StateImage], copies: int = 1) -> None:
        """Save what `make` makes of the last image. Called with the partition's lock held."""
        with self._lock:
            self.version += 1
            self._write(make(self._saved), copies)

    def save_unless_overtaken(self, image: StateImage, version: int) -> bool:
        """Save `image`, unless another was saved since `version`; return whether it was. Needs no lock of the partition."""
        with self._lock:
            if version == self.version:
                self._write(image, 1)
            return version == self.version

    def _write(self, image: StateImage, copies: int) -> None:
        """A save that failed may have reached the disk all the same. It may tell of what has not happened (an epoch, a
        truncation), so nothing is written until both slots are known again.
        """
        in_doubt, self.in_doubt = self.in_doubt, True
        self._slots.save(encode_image(image), copies=2 if in_doubt else copies)
        self.in_doubt = False
        self._saved = image
