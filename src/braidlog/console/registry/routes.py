"""Routes of the schema registry: Confluent's published REST API, with the permission that each route needs.

Does not handle: which schemas may be registered (`registry/changes.py`), storage (`registry.py`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidlog.console.registry.access import Client, answer
from braidlog.console.registry.schema_registry import Registry
from braidlog.registry import changes
from braidlog.registry.errors import Code, RegistryError
from braidlog.registry.registry_state import State, Version
from braidlog.registry.schemas import AVRO, SERIALIZED, TYPES, Schema

T = TypeVar("T")
_wanted: Final = msgspec.json.Decoder(changes.Wanted)
_objects: Final = msgspec.json.Decoder(dict[str, Any])


class Ask(NamedTuple):
    """A request: path parameters, query parameters and body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    client: Client

    @property
    def subject(self) -> str:
        return changes.check_subject(self.path["subject"])

    @property
    def subject_or_all(self) -> str | None:
        return self.subject if "subject" in self.path else None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def text(self, name: str) -> str:
        return self.query.get(name, "")

    def page(self, listed: Sequence[T]) -> list[T]:
        """Return the page that `offset` and `limit` select."""
        offset, limit = (
            _integer(self.query.get(name, default)) for name, default in (("offset", "0"), ("limit", "-1"))
        )
        return list(listed[max(offset, 0) :][: limit if limit >= 0 else None])

    def wanted(self) -> changes.Wanted:
        try:
            return _wanted.decode(self.body)
        except msgspec.MsgspecError as error:
            raise RegistryError(Code.INVALID_SCHEMA, f"Invalid schema: {error}") from None

    def field(self, name: str) -> object:
        try:
            return _objects.decode(self.body).get(name)
        except msgspec.MsgspecError as error:
            raise RegistryError(Code.INVALID_SCHEMA, f"the body is not a JSON object: {error}") from None


Handler = Callable[[Ask], Awaitable[Any]]


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 10:
        raise RegistryError(Code.INVALID_VERSION, f"expected a number, not {text[:40]!r}")
    return int(text)


class RegistryRoutes:
    """The routes of this process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        subject, version = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
        self._table: list[tuple[str, str, Handler]] = [
            ("GET", "/", self._root),
            ("GET", "/contexts", self._contexts),
            ("GET", "/subjects", self._subjects),
            ("GET", f"{subject}/versions", self._versions),
            ("POST", f"{subject}/versions", self._register),
            ("POST", subject, self._lookup),
            ("DELETE", subject, self._delete_subject),
            ("GET", version, self._version),
            ("GET", f"{version}/schema", self._version_text),
            ("GET", f"{version}/referencedby", self._referenced_by),
            ("DELETE", version, self._delete_version),
            ("GET", "/schemas", self._schemas),
            ("GET", "/schemas/types", self._types),
            ("GET", "/schemas/ids/{id}", self._by_id),
            ("GET", "/schemas/ids/{id}/schema", self._text_by_id),
            ("GET", "/schemas/ids/{id}/subjects", self._subjects_by_id),
            ("GET", "/schemas/ids/{id}/versions", self._versions_by_id),
            ("POST", "/compatibility/subjects/{subject}/versions", self._compatible),
            ("POST", "/compatibility/subjects/{subject}/versions/{version}", self._compatible),
        ]
        for path in ("", "/{subject}"):
            self._table += [
                ("GET", f"/config{path}", self._level),
                ("PUT", f"/config{path}", self._set_level),
                ("DELETE", f"/config{path}", self._delete_level),
                ("GET", f"/mode{path}", self._mode),
                ("PUT", f"/mode{path}", self._set_mode),
                ("DELETE", f"/mode{path}", self._delete_mode),
            ]

    async def __call__(self, request: Request, client: Client) -> Response:
        # Split the path before decoding it: a subject may contain a slash.
        raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode()).decode("ascii", "replace")
        parts = [unquote(each) for each in raw.rstrip("/").split("/")]
        methods = set()
        for method, pattern, handler in self._table:
            found = _match(pattern.rstrip("/").split("/"), parts)
            if found is None:
                continue
            methods.add(method)
            if method == request.method:
                asked = Ask(found, request.query_params, await request.body(), client)
                made = await handler(asked)
                return made if isinstance(made, Response) else answer(made)
        status = 405 if methods else 404
        words = "HTTP 405 Method Not Allowed" if methods else "HTTP 404 Not Found"
        return answer({"error_code": status, "message": words}, status)

    # -- reading -------------------------------------------------------------------------------------------------

    async def _root(self, ask: Ask) -> object:
        await ask.client.may_each([])
        return {}

    async def _contexts(self, ask: Ask) -> object:
        await ask.client.may_each([])
        return ask.page(["."])

    async def _types(self, ask: Ask) -> object:
        await ask.client.may_each([])
        return TYPES

    async def _all(self, ask: Ask) -> list[Version]:
        """Return the visible versions of all subjects with the requested prefix."""
        prefix = ask.text("subjectPrefix")
        prefix = "" if prefix == ":*:" else prefix.removeprefix(":.:")
        state = await self._registry.fresh()
        deleted = ask.flag("deleted") or ask.flag("deletedOnly")
        found = [each for each in state.every(deleted=deleted) if each.subject.startswith(prefix)]
        if ask.flag("deletedOnly"):
            found = [each for each in found if each.deleted]
        return await _seen(ask, found)

    async def _subjects(self, ask: Ask) -> object:
        return ask.page(list(dict.fromkeys(each.subject for each in await self._all(ask))))

    async def _schemas(self, ask: Ask) -> object:
        found = await self._all(ask)
        if ask.flag("latestOnly"):
            found = list({each.subject: each for each in found}.values())
        return ask.page([_version_json(each) for each in found])

    async def _versions(self, ask: Ask) -> object:
        state = await self._allowed(ask, "describe")
        only = ask.flag("deletedOnly")
        found = changes.versions_of(state, ask.subject, deleted=only or ask.flag("deleted"))
        return ask.page([each.version for each in found if each.deleted or not only])

    async def _allowed(self, ask: Ask, operation: str) -> State:
        await ask.client.require(operation, ask.subject_or_all)
        return await self._registry.fresh()

    async def _found(self, ask: Ask) -> tuple[State, Version]:
        state = await self._allowed(ask, "describe")
        return state, changes.version_of(state, ask.subject, ask.path["version"], deleted=ask.flag("deleted"))

    async def _version(self, ask: Ask) -> object:
        _, found = await self._found(ask)
        return _version_json(found, await self._formatted(found.schema, ask))

    async def _version_text(self, ask: Ask) -> object:
        _, found = await self._found(ask)
        return _raw(await self._formatted(found.schema, ask))

    async def _referenced_by(self, ask: Ask) -> object:
        state, found = await self._found(ask)
        return ask.page(sorted({each.id for each in state.referring(found, deleted=ask.flag("deleted"))}))

    async def _lookup(self, ask: Ask) -> object:
        await ask.client.require("describe", ask.subject)
        subject, wanted, deleted = ask.subject, ask.wanted(), ask.flag("deleted")
        found = await self._registry.look(lambda state: changes.lookup(state, subject, wanted, deleted=deleted))
        return _version_json(found, await self._formatted(found.schema, ask))

    async def _compatible(self, ask: Ask) -> object:
        await ask.client.require("describe", ask.subject)
        subject, wanted, version = ask.subject, ask.wanted(), ask.path.get("version")
        wrong = await self._registry.look(lambda state: changes.compatible(state, subject, wanted, version))
        told: dict[str, Any] = {"is_compatible": not wrong}
        return {**told, "messages": wrong} if ask.flag("verbose") else told

    async def _formatted(self, schema: Schema, ask: Ask) -> str:
        if ask.text("format") != SERIALIZED:
            return schema.text
        return await self._registry.look(lambda state: state.text(schema, SERIALIZED))

    # -- by id ---------------------------------------------------------------------------------------------------

    async def _with_id(self, ask: Ask) -> tuple[State, list[Version]]:
        """Return the versions with an id; uses the known state, since the schema of an id never changes."""
        number, subject = _integer(ask.path["id"]), ask.text("subject").removeprefix(":.:")
        state = self._registry.known
        if number not in state.schemas or ask.path.keys() != {"id"}:
            state = await self._registry.fresh()
        found = await _seen(ask, list(state.with_id(number, deleted=True)))
        if subject:
            found = [each for each in found if each.subject == subject] or found
        if not found:
            raise RegistryError(Code.SCHEMA_NOT_FOUND, f"Schema {number} not found")
        return state, found

    async def _by_id(self, ask: Ask) -> object:
        state, (found, *_) = await self._with_id(ask)
        told = _schema(found.schema, await self._formatted(found.schema, ask))
        return {**told, "maxId": state.max_id} if ask.flag("fetchMaxId") else told

    async def _text_by_id(self, ask: Ask) -> object:
        _, (found, *_) = await self._with_id(ask)
        return _raw(await self._formatted(found.schema, ask))

    async def _uses(self, ask: Ask) -> list[Version]:
        await self._registry.fresh()
        _, found = await self._with_id(ask)
        return [each for each in found if not each.deleted or ask.flag("deleted")]

    async def _subjects_by_id(self, ask: Ask) -> object:
        return ask.page(list(dict.fromkeys(each.subject for each in await self._uses(ask))))

    async def _versions_by_id(self, ask: Ask) -> object:
        return ask.page([{"subject": each.subject, "version": each.version} for each in await self._uses(ask)])

    # -- changing ------------------------------------------------------------------------------------------------

    async def _change(self, ask: Ask, decide: Callable[[State], changes.Change]) -> object:
        answer, ask.client.has_changed = await self._registry.change(decide)
        return answer

    async def _register(self, ask: Ask) -> object:
        await ask.client.require("write", ask.subject)
        subject, wanted = ask.subject, ask.wanted()
        return await self._change(ask, lambda state: changes.register(state, subject, wanted))

    async def _delete_subject(self, ask: Ask) -> object:
        await ask.client.require("delete", ask.subject)
        subject, permanent = ask.subject, ask.flag("permanent")
        return await self._change(ask, lambda state: changes.delete_subject(state, subject, permanent=permanent))

    async def _delete_version(self, ask: Ask) -> object:
        await ask.client.require("delete", ask.subject)
        subject, version, permanent = ask.subject, ask.path["version"], ask.flag("permanent")
        return await self._change(
            ask, lambda state: changes.delete_version(state, subject, version, permanent=permanent)
        )

    async def _changed(self, ask: Ask, decide: Callable[[State], changes.Change]) -> object:
        """Change a level or a mode, of a subject or of all subjects."""
        await ask.client.require("alter" if ask.subject_or_all else "cluster", ask.subject_or_all)
        return await self._change(ask, decide)

    async def _shown(self, ask: Ask) -> State:
        """Authorize reading a level or a mode; the default of all subjects only needs authentication."""
        await (ask.client.require("describe", ask.subject) if ask.subject_or_all else ask.client.may_each([]))
        return await self._registry.fresh()

    async def _level(self, ask: Ask) -> object:
        state, subject = await self._shown(ask), ask.subject_or_all
        if subject is not None and subject not in state.levels and not ask.flag("defaultToGlobal"):
            raise changes.no_level(subject)
        return {"compatibilityLevel": state.level(subject)}

    async def _set_level(self, ask: Ask) -> object:
        subject, wanted = ask.subject_or_all, ask.field("compatibility")
        return await self._changed(ask, lambda state: changes.set_level(state, subject, wanted))

    async def _delete_level(self, ask: Ask) -> object:
        subject = ask.subject_or_all
        return await self._changed(ask, lambda state: changes.delete_level(state, subject))

    async def _mode(self, ask: Ask) -> object:
        state, subject = await self._shown(ask), ask.subject_or_all
        if subject is not None and subject not in state.modes and not ask.flag("defaultToGlobal"):
            raise changes.no_mode(subject)
        return {"mode": state.mode(subject)}

    async def _set_mode(self, ask: Ask) -> object:
        subject, wanted, force = ask.subject_or_all, ask.field("mode"), ask.flag("force")
        return await self._changed(ask, lambda state: changes.set_mode(state, subject, wanted, force=force))

    async def _delete_mode(self, ask: Ask) -> object:
        subject = ask.subject_or_all
        return await self._changed(ask, lambda state: changes.delete_mode(state, subject))


def _match(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    found = {}
    for name, part in zip(pattern, parts, strict=True):
        if name.startswith("{"):
            found[name[1:-1]] = part
        elif name != part:
            return None
    return found


async def _seen(ask: Ask, versions: Iterable[Version]) -> list[Version]:
    listed = list(versions)
    visible = await ask.client.visible(sorted({each.subject for each in listed}))
    return [each for each in listed if each.subject in visible]


def _schema(schema: Schema, text: str) -> dict[str, Any]:
    told: dict[str, Any] = {"schema": text}
    if schema.type != AVRO:
        told["schemaType"] = schema.type
    if schema.references:
        told["references"] = msgspec.to_builtins(schema.references)
    return told


def _version_json(each: Version, text: str | None = None) -> dict[str, Any]:
    who = {"subject": each.subject, "version": each.version, "id": each.id}
    return {**who, **_schema(each.schema, each.schema.text if text is None else text)}


def _raw(text: str) -> Response:
    return Response(text, media_type="application/vnd.schemaregistry.v1+json")
