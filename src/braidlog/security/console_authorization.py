"""Who may do what at the doors of a node's own console: the console everything, and who has signed in there what the rules say.

Knows: that a token names somebody for whom the console asks. Refuses to know: rules; they are the node's.
Invariant: whoever has signed in at the console may do there what it may do at every other door, and no more.
"""

from braidlog.model.console_token import principal_of
from braidlog.security.access_rule import Kind, Operation
from braidlog.security.authorization import CONSOLE, Authorize


class OnBehalf(Authorize):
    door = "console"

    def __init__(self, node: Authorize, secret: str) -> None:
        super().__init__({}, [])
        self.required = True
        self.is_open = self.is_free = False
        self._node = node
        self._secret = secret

    def authenticate(self, token: bytes) -> str | None:
        return principal_of(self._secret, token)

    def is_allowed(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> bool:
        return principal == CONSOLE or self._node.is_allowed(principal, operation, name, kind)

    def check(self, principal: str, operation: Operation, name: str | None, kind: Kind = Kind.TOPIC) -> None:
        if principal != CONSOLE:
            self._node.check(principal, operation, name, kind)
