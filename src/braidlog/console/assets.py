"""Static files of pages, kept compressed in memory.

Only files of the folder `static/` are served, and none comes from another host. A file's address contains a part of its
hash, so that browsers can cache it without limit.
"""

import gzip
import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_KINDS: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_BRIEFLY: Final = "public, max-age=60"


class Asset(NamedTuple):
    plain: bytes
    packed: bytes
    kind: str
    stamp: str


class Assets:
    def __init__(self) -> None:
        self._known: dict[str, Asset] = {}
        for found in files("braidlog.console").joinpath("static").iterdir():
            kind = _KINDS.get(f".{found.name.rpartition('.')[2]}")
            if kind is not None:
                data = found.read_bytes()
                stamp = hashlib.sha256(data).hexdigest()[:12]
                self._known[found.name] = Asset(data, gzip.compress(data, 9, mtime=0), kind, stamp)

    def address(self, name: str) -> str:
        """Return the address of a file. Raises `KeyError` for an unknown name, which is a bug."""
        return f"/static/{name}?{self._known[name].stamp}"

    async def serve(self, request: Request) -> Response:
        asset = self._known.get(request.path_params["name"])
        if asset is None:
            return PlainTextResponse("file not found", 404)
        headers = {
            "cache-control": _FOR_EVER if request.url.query == asset.stamp else _BRIEFLY,
            "vary": "accept-encoding",
        }
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(asset.packed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.kind)
        return Response(asset.plain, headers=headers, media_type=asset.kind)
