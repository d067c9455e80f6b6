"""The saved state of a partition: two slots, written in turn, and a snapshot beside each segment.

Knows: which image was saved last, and whether a failed save left the slots in doubt. Refuses to know: when to save.
Invariant: two images never overtake each other, and an image that was saved in full is the one that is built upon.
"""

import threading
from collections.abc import Callable

from braidlog.storage.files import Disk, join, read_whole, write_whole
from braidlog.storage.segment_files import state_name
from braidlog.storage.slots import SlotPair, pack_slot, unpack_slot
from braidlog.storage.state import StateImage, decode_image, encode_image

STATE_MAGIC = b"BRAIDSTA"


class Checkpoints:
    def __init__(self, slots: SlotPair, saved: StateImage, *, in_doubt: bool = False) -> None:
        self._slots = slots
        self._saved = saved
        self._lock = threading.Lock()  # taken last: whoever holds it asks for no other
        self.version = 0
        self.in_doubt = in_doubt

    @property
    def saved(self) -> StateImage:
        """The last image that was saved in full."""
        return self._saved

    def save(self, make: Callable[[StateImage], StateImage], copies: int = 1) -> None:
        """Save what `make` makes of the last image. Called with the partition's lock held."""
        with self._lock:
            self.version += 1
            self._write(make(self._saved), copies)

    def save_unless_overtaken(self, image: StateImage, version: int, copies: int = 1) -> bool:
        """Save `image`, unless another was saved since `version`; return whether it was. Needs no lock of the partition."""
        with self._lock:
            if version == self.version:
                self._write(image, copies)
            return version == self.version

    def _write(self, image: StateImage, copies: int) -> None:
        """A save that failed may have reached the disk all the same. It may tell of what has not happened (an epoch, a
        truncation), so nothing is written until both slots are known again.
        """
        in_doubt, self.in_doubt = self.in_doubt, True
        self._slots.save(encode_image(image), copies=2 if in_doubt else copies)
        self.in_doubt = False
        self._saved = image


def read_snapshot(disk: Disk, folder: str, base: int) -> StateImage | None:
    """The state beside the segment `base`; None if there is none, `ValueError` if it does not hold."""
    path = join(folder, state_name(base))
    if not disk.exists(path):
        return None
    image = decode_image(unpack_slot(STATE_MAGIC, state_name(base), read_whole(disk, path)).payload)
    if image.end_offset != base:
        raise ValueError(f"it is the state at offset {image.end_offset}, not at {base}")
    return image


def write_snapshot(disk: Disk, folder: str, image: StateImage) -> None:
    """Put the state beside the segment that begins where it was taken; there must be none yet."""
    write_whole(disk, join(folder, state_name(image.end_offset)), pack_slot(STATE_MAGIC, 0, encode_image(image)))
