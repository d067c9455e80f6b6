"""Checks whether an object store refuses to overwrite an object (`If-None-Match: *`).

Each location is checked once per process, with a temporary object. Does not handle: tables.
"""

import uuid
from collections.abc import Mapping

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import from_url

_OF_CLIENT = ("timeout", "connect_timeout")
_known: dict[tuple[str, str], bool] = {}
"""Results, by bucket and endpoint."""


def refuses_second(uri: str, options: Mapping[str, str], prefix: str) -> bool:
    """Return whether the store refuses. `options`: in the names of Rust's object stores; `prefix`: of the test
    object's name."""
    key = (uri.split("/")[2], options.get("aws_endpoint", ""))
    if key not in _known:
        _known[key] = _try(uri, options, prefix)
    return _known[key]


def _try(uri: str, options: Mapping[str, str], prefix: str) -> bool:
    client = {name: options[name] for name in _OF_CLIENT if name in options}
    own = {name: value for name, value in options.items() if name not in (*_OF_CLIENT, "aws_allow_http")}
    allowed = {"allow_http": "aws_allow_http" in options}
    store = from_url(uri, config=own, client_options={**client, **allowed})  # type: ignore[call-overload] # names are data
    name = prefix + uuid.uuid4().hex
    obstore.put(store, name, b"", mode="create")
    try:
        obstore.put(store, name, b"", mode="create")
    except AlreadyExistsError:
        return True
    finally:
        obstore.delete(store, name)
    return False
