"""Actions on keys: add, edit, expire, delete."""

from functools import partial

from braidlog.console.actions.plan import Plan, Planner, plural
from braidlog.console.form_fields import Fields, FormError, integer, raw_bytes
from braidlog.console.listener_clients import Clients

KINDS = ("string", "hash", "list")


def _key(fields: Fields) -> bytes:
    """Read a key as text, or as hexadecimal digits from a page of the key."""
    try:
        key = bytes.fromhex(fields["hex"]) if fields.get("hex") else raw_bytes(fields, "key")
    except ValueError:
        raise FormError("invalid key") from None
    if not key:
        raise FormError("missing key")
    return key


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")[:200]


async def put(fields: Fields, clients: Clients) -> Plan:
    """Set a string or a field of a hash, or append an item to a list."""
    key, value, kind = _key(fields), raw_bytes(fields, "value"), fields.get("kind", "string")
    ttl, field, store = integer(fields, "ttl", 1) or 0, fields.get("field", ""), clients.store
    if kind not in KINDS:
        raise FormError(f"the kind is one of {', '.join(KINDS)}")
    is_there, size = await store.exists(key), plural(len(value), "byte")
    if kind == "hash":
        words = f"Set field {field or '(empty)'} of hash {_shown(key)} to {size}."
    elif kind == "list":
        words = f"Append {size} to list {_shown(key)}."
    else:
        words = f"{'Replace' if is_there else 'Add'} key {_shown(key)}, a string of {size}."

    async def run() -> None:
        if kind == "hash":
            await store.hset(key, {field: value})
        elif kind == "list":
            await store.rpush(key, value)
        else:
            await store.set(key, value, ttl_seconds=ttl)
        if ttl and kind != "string":
            await store.expire(key, ttl)

    if ttl:
        words += f" It expires in {plural(ttl, 'second')}."
    return Plan(words, run, f"Key {_shown(key)} saved.", _page(key), is_harmful=is_there and kind == "string")


def _page(key: bytes) -> str:
    return f"/keys/one?hex={key.hex()}"


async def expire(fields: Fields, clients: Clients) -> Plan:
    key, ttl = _key(fields), integer(fields, "ttl", 1) or 0
    words = (
        f"Let key {_shown(key)} expire in {plural(ttl, 'second')}."
        if ttl
        else f"Remove the expiry of key {_shown(key)}."
    )

    async def run() -> None:
        if not await clients.store.expire(key, ttl):
            raise FormError("key not found")

    return Plan(words, run, "Done.", _page(key), is_harmful=ttl > 0)


async def delete(fields: Fields, clients: Clients) -> Plan:
    key = _key(fields)
    run = partial(clients.store.delete, key)
    return Plan(f"Delete key {_shown(key)} permanently.", run, f"Key {_shown(key)} deleted.", "/keys", is_harmful=True)


ACTIONS: dict[str, Planner] = {"key-put": put, "key-expire": expire, "key-delete": delete}
