"""Profiles: servers under names, so that --server, --principal and the rest need not be typed each time.

Knows: the file they are kept in. Refuses to know: how they are used (`connection.py`).
Invariant: no secret is in it. A token is named by its file, and a URL with one is refused.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

KEPT = ("server", "principal", "token_file", "ca", "cert", "cert_key", "options")


class ProfileError(Exception):
    """What is wrong, and what to do."""


class Profiles(msgspec.Struct, forbid_unknown_fields=True):
    used: str | None = None
    profiles: dict[str, dict[str, Any]] = {}


def profiles_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "braidlog" / "profiles.json"


def read_profiles() -> Profiles:
    try:
        return msgspec.json.decode(profiles_file().read_bytes(), type=Profiles)
    except (FileNotFoundError, NotADirectoryError, PermissionError, RuntimeError):
        return Profiles()  # a service may have no home, or one that it may not enter: it has no profiles either
    except (OSError, msgspec.DecodeError) as error:
        raise ProfileError(f"{profiles_file()}: {error}; mend it or delete it") from error


def write_profiles(profiles: Profiles) -> None:
    """The old file or the new one, whatever happens."""
    target = profiles_file()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".profiles-")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(profiles), indent=2))
        Path(name).replace(target)
    except OSError as error:
        raise ProfileError(f"{target}: {error.strerror}") from error


def load_profile(name: str | None) -> dict[str, Any]:
    """The one of this name; without one, the one in use; nothing if there is none."""
    known = read_profiles()
    wanted = known.used if name is None else name
    if wanted is None:
        return {}
    if wanted not in known.profiles:
        names = ", ".join(sorted(known.profiles)) or "none"
        raise ProfileError(f"no profile {wanted!r}; there are: {names}. Make one with `braid profile create {wanted}`")
    found = known.profiles[wanted]
    return {
        field: tuple(value) if isinstance(value, list) else value for field, value in found.items() if field in KEPT
    }


def has_secret(server: str) -> bool:
    return urlsplit(server).password is not None
