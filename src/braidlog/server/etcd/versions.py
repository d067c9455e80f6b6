"""etcd versions that are safe for the metadata."""

import re
from typing import Final

from braidlog.cluster.etcd.port import EtcdRefusedError

FLOOR: Final = (3, 4, 22)
_TORN_FROM: Final = (3, 5, 0)
_TORN_TO: Final = (3, 5, 5)


def check_version(text: str, whose: str) -> None:
    """Raise for versions whose members could silently diverge after a crash, and for versions that are too old."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise EtcdRefusedError(f"{whose} reports etcd version {text!r}; 3.4.22 or later is required")
    version = tuple(int(part) for part in found.groups())
    if version < FLOOR:
        raise EtcdRefusedError(f"{whose} is etcd {text}; 3.4.22 or later is required (not 3.5.0 to 3.5.5)")
    if _TORN_FROM <= version <= _TORN_TO:
        raise EtcdRefusedError(
            f"{whose} is etcd {text}, whose members can diverge permanently after a kill; use 3.4.22 or later, or "
            "3.5.6 or later"
        )
