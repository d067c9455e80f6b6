"""What one connection may use, and when it has kept something waiting for too long."""

from typing import Final

import msgspec

FRAME_BYTES_PER_SECOND_MIN: Final = 100_000
"""What has come of a frame buys time at this rate."""


class SessionLimits(msgspec.Struct, frozen=True):
    """What one connection may use."""

    in_flight_max: int = 1024
    output_bytes_max: int = 8 * 1024 * 1024
    output_seconds_max: float = 30.0
    frame_seconds_max: float = 30.0
    idle_seconds_max: float = 600.0

    def overdue(
        self, now: float, *, blocked_since: float | None, partial_since: float | None, partial_bytes: int
    ) -> str | None:
        """Why a connection should be cut off that does not read its answers, or has begun a frame, since then."""
        if blocked_since is not None and now - blocked_since > self.output_seconds_max:
            return f"answers not read within {self.output_seconds_max:g} s"
        allowed = self.frame_seconds_max + partial_bytes / FRAME_BYTES_PER_SECOND_MIN
        if partial_since is not None and now - partial_since > allowed:
            return f"frame not completed within {allowed:.3g} s"
        return None
