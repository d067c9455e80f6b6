"""Actions that change the node: planned, confirmed by the user, executed, and logged by the node.

The node authorizes each action for the signed-in user (`broker/access`). An action runs only if its plan still has the
confirmed wording; otherwise the user confirms again. Every confirmed action is logged, whether it succeeds or fails.
"""

import hmac
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidlog.client.errors import ClientError
from braidlog.console.access_control import Guard
from braidlog.console.actions import access, groups, keys, schemas, topics
from braidlog.console.actions.plan import Plan, Planner
from braidlog.console.form_fields import FormError, fields_of
from braidlog.console.forms import address_of
from braidlog.console.listener_clients import ClientsOf
from braidlog.console.node_client import Node, NodeError
from braidlog.console.rendering import Renderer
from braidlog.registry.errors import RegistryError

ACTIONS: Final[dict[str, Planner]] = {
    **topics.ACTIONS,
    **groups.ACTIONS,
    **keys.ACTIONS,
    **schemas.ACTIONS,
    **access.ACTIONS,
}
CONFIRMED: Final = "x-confirmed"
ROWS_MAX: Final = 100


class Actions:
    """The actions of this process."""

    def __init__(self, node: Node, clients: ClientsOf, guard: Guard, renderer: Renderer) -> None:
        self._node = node
        self._clients = clients
        self._guard = guard
        self._renderer = renderer

    async def act(self, request: Request) -> Response:
        """Show the plan; execute it when the same form returns with the seal of the plan's wording."""
        name = request.path_params["action"]
        planner = ACTIONS.get(name)
        if planner is None:
            return self._said(f"unknown action {name[:40]!r}", 404)
        fields = await fields_of(request)
        try:
            plan = await planner(fields, self._clients(request.scope["principal"]))
            told = msgspec.json.encode([name, sorted(fields.items()), plan.words]).decode()
            seal = self._guard.seal(request, told)
            if not hmac.compare_digest(request.headers.get(CONFIRMED, "").encode(), seal.encode()):
                return self._renderer.fragment("confirm.html", plan=plan, seal=seal, rows=plan.rows[:ROWS_MAX])
            return await self._carry_out(request, plan)
        except (FormError, ClientError, NodeError, RegistryError, TimeoutError) as error:
            return self._said(str(error) or "timed out")

    async def _carry_out(self, request: Request, plan: Plan) -> Response:
        who, address = request.scope["principal"], address_of(request)
        try:
            await plan.run()
        except (FormError, ClientError, RegistryError, TimeoutError) as error:
            await self._node.audit(who, address, f"{plan.words} Not done ({error})")
            raise
        await self._node.audit(who, address, f"{plan.words} Done")
        response = self._renderer.fragment("acted.html", ok=True, text=plan.done, then=plan.then)
        response.headers["hx-trigger"] = "acted"
        return response

    def _said(self, text: str, status: int = 200) -> Response:
        """Show a message in place of the confirmation; htmx ignores responses with an error status."""
        return self._renderer.fragment("acted.html", status, ok=False, text=f"{text[:1].upper()}{text[1:]}", then="")
