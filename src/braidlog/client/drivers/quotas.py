"""Quotas as a server reports them.

Does not handle: protocols, throttling.
"""

import msgspec

EVERYBODY = "*"


class Quota(msgspec.Struct, frozen=True):
    """The rates of a user, a client id, a client id of a user, or an address; `*` is the default for entities without
    their own rates.

    `request_percent` is a share of the time of the server's event loop. A rate of null is not limited by this quota.
    """

    user: str | None = None
    client_id: str | None = None
    address: str | None = None
    append_bytes_per_second: int | None = None
    fetch_bytes_per_second: int | None = None
    request_percent: float | None = None
    connections_per_second: int | None = None

    @property
    def whose(self) -> tuple[str | None, str | None, str | None]:
        return self.user, self.client_id, self.address
