"""What a server tells of quotas.

Knows: the shape of it. Refuses to know: which protocol it came by, how anybody is slowed down.
"""

import msgspec

EVERYBODY = "*"


class Quota(msgspec.Struct, frozen=True):
    """The rates of a user, a client id, a client id of a user, or an address; `*` stands for all that have none of their own.

    `request_percent` is of the time of the server's loop. A rate that is null is not limited here.
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
