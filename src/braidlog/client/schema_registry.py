"""A client of a schema registry: braidlog's, or any other with the same REST API.

Does not handle: the meaning of schemas. A request takes at most `SECONDS_MAX` and an answer has at most
`ANSWER_BYTES_MAX`. Failures are `ClientError`s, as for every other server.
"""

import base64
import json
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from braidlog.client.errors import ConnectError, NoAnswerError, Refusal, RefusedError
from braidlog.registry.schemas import Reference, Schema

SECONDS_MAX: Final = 60.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryClient:
    """`name` and `secret` are for basic authentication; a secret alone is an admin token."""

    def __init__(self, url: str, name: str = "", secret: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"a registry URL has the form http://HOST:PORT, not {url!r}")
        self._url = url.rstrip("/")
        self._headers = {"Accept": CONTENT_TYPE}
        if name:
            shown = base64.b64encode(f"{name}:{secret}".encode()).decode()
            self._headers["Authorization"] = f"Basic {shown}"
        elif secret:
            self._headers["Authorization"] = f"Bearer {secret}"

    def ask(self, method: str, *path: str, body: Any = None, **query: str) -> Any:  # noqa: ANN401 - JSON
        """Return the answer to a request; path segments are quoted here."""
        address = "/".join([self._url, *(quote(each, safe="") for each in path)])
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": CONTENT_TYPE} if data is not None else self._headers
        address += f"?{urlencode(query)}" if query else ""
        request = urllib.request.Request(address, data, headers, method=method)  # noqa: S310 - checked above
        # Not through a proxy from the environment: it would see the secret.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=SECONDS_MAX) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except TimeoutError as error:
            raise NoAnswerError(f"{self._url} did not answer: {error}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or reason
            raise ConnectError(f"{self._url} cannot be reached: {why}; is it the URL of a schema registry?") from None
        except ValueError:
            raise RefusedError(Refusal.FAILED, "registry", "", f"{self._url} is not a schema registry") from None

    def schema(self, number: int) -> Schema:
        return _schema(self.ask("GET", "schemas", "ids", str(number)))

    def version(self, subject: str, version: str = "latest") -> tuple[int, Schema]:
        """Return the id and the schema of a version."""
        answer = self.ask("GET", "subjects", subject, "versions", version)
        return int(answer["id"]), _schema(answer)

    def find(self, reference: Reference) -> Schema:
        answer = self.ask("GET", "subjects", reference.subject, "versions", str(reference.version), deleted="true")
        return _schema(answer)


def _schema(fields: dict[str, Any]) -> Schema:
    references = tuple(msgspec.convert(fields.get("references", []), list[Reference]))
    return Schema(fields["schema"], fields.get("schemaType", "AVRO"), references)


def _refused(error: urllib.error.HTTPError) -> RefusedError:
    try:
        body = json.loads(error.read(ANSWER_BYTES_MAX))
        code, words = int(body["error_code"]), str(body["message"])
    except (OSError, ValueError, KeyError, TypeError):
        code, words = error.code, error.reason or f"HTTP {error.code}"
    status = error.code
    reason = Refusal.NOT_ALLOWED if status in (401, 403) else Refusal.FAILED if status >= 500 else Refusal.INVALID
    return RefusedError(reason, "registry", code, words)
