"""Action on schemas: register a version."""

from functools import partial
from urllib.parse import quote

from braidlog.console.actions.plan import Plan, Planner, plural
from braidlog.console.form_fields import Fields, FormError, text_of
from braidlog.console.listener_clients import Clients
from braidlog.registry.changes import Wanted, check_subject
from braidlog.registry.schemas import AVRO, TYPES, Reference


async def register(fields: Fields, clients: Clients) -> Plan:
    subject, text = check_subject(text_of(fields, "subject")), text_of(fields, "schema").replace("\r\n", "\n")
    kind = fields.get("type") or AVRO
    if kind not in TYPES:
        raise FormError(f"type is one of {', '.join(TYPES)}")
    wanted = Wanted(text, kind, _references(fields.get("references", "")))
    change, versions = await clients.schemas.look(subject, wanted)
    if not change.entries:
        raise FormError(f"subject {subject} already has this schema: id={change.answer['id']}")
    of = f"which has {plural(versions, 'version')}" if versions else "a new subject"
    return Plan(
        f"Register a schema ({kind}, {plural(len(text), 'character')}) for subject {subject}, {of}.",
        partial(clients.schemas.register, subject, wanted),
        f"Schema of subject {subject} registered.",
        f"/schemas/{quote(subject)}",
    )


def _references(text: str) -> list[Reference] | None:
    """Parse lines of `name subject version`."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        match line.split():
            case [name, subject, version] if version.isascii() and version.isdecimal() and len(version) < 10:
                found.append(Reference(name, subject, int(version)))
            case _:
                raise FormError(f"a reference has the form: name subject version, not {line[:60]!r}")
    return found or None


ACTIONS: dict[str, Planner] = {"schema-register": register}
