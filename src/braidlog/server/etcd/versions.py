"""Which etcd may hold the metadata."""

import re
from typing import Final

from braidlog.cluster.etcd.port import EtcdRefusedError

FLOOR: Final = (3, 4, 22)
_TORN_FROM: Final = (3, 5, 0)
_TORN_TO: Final = (3, 5, 5)


def check_version(text: str, whose: str) -> None:
    """Refuse versions whose members could part after a crash without a word, and those before they were mended."""
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise EtcdRefusedError(f"{whose} says that it is etcd {text!r}; 3.4.22 or later is needed")
    version = tuple(int(part) for part in found.groups())
    if version < FLOOR:
        raise EtcdRefusedError(f"{whose} is etcd {text}; 3.4.22 or later is needed (not 3.5.0 to 3.5.5)")
    if _TORN_FROM <= version <= _TORN_TO:
        raise EtcdRefusedError(
            f"{whose} is etcd {text}, whose members can differ for good after a kill; use 3.4.22 or later, or 3.5.6 "
            "or later"
        )
