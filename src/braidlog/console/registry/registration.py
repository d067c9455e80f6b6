"""Register schemas for a signed-in user of the console; the node authorizes the user by its rules."""

from braidlog.console.node_client import Node
from braidlog.console.registry.access import topic_of
from braidlog.console.registry.schema_registry import Registry
from braidlog.model.actor import CONSOLE
from braidlog.registry import changes
from braidlog.registry.errors import Code, RegistryError


class Registering:
    """Schema registration of one principal."""

    def __init__(self, registry: Registry, node: Node, principal: str) -> None:
        self._registry = registry
        self._node = node
        self._principal = principal

    async def look(self, subject: str, wanted: changes.Wanted) -> tuple[changes.Change, int]:
        """Return the change that registering would append, empty if the schema exists, and the subject's number of versions."""
        await self._require("describe", subject)
        return await self._registry.look(
            lambda state: (
                changes.register(state, subject, wanted),
                len(state.versions(subject, deleted=False)),
            )
        )

    async def register(self, subject: str, wanted: changes.Wanted) -> None:
        await self._require("write", subject)
        await self._registry.change(lambda state: changes.register(state, subject, wanted))

    async def _require(self, operation: str, subject: str) -> None:
        topic = topic_of(subject)
        if self._principal != CONSOLE and not await self._node.may_here(self._principal, operation, topic):
            raise RegistryError(Code.FORBIDDEN, f"{self._principal!r} may not {operation} topic {topic!r}")
