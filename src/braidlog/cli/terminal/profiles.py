"""File of profiles: named connection options.

The file contains no secrets: a profile stores the path of a token file, and a URL with a token is refused.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

KEPT = ("server", "principal", "token_file", "ca", "cert", "cert_key", "options")


class ProfileError(Exception):
    """Error in the profiles, with its remedy."""


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
        return Profiles()  # a service without an accessible home directory has no profiles
    except (OSError, msgspec.DecodeError) as error:
        raise ProfileError(f"{profiles_file()}: {error}; correct or delete the file") from error


def write_profiles(profiles: Profiles) -> None:
    """Replace the file atomically."""
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
    """Return the named profile, or the default profile, or an empty one."""
    known = read_profiles()
    wanted = known.used if name is None else name
    if wanted is None:
        return {}
    if wanted not in known.profiles:
        names = ", ".join(sorted(known.profiles)) or "none"
        raise ProfileError(
            f"unknown profile {wanted!r}; profiles: {names}. Create it with `braid profile create {wanted}`"
        )
    found = known.profiles[wanted]
    return {
        field: tuple(value) if isinstance(value, list) else value for field, value in found.items() if field in KEPT
    }


def has_secret(server: str) -> bool:
    return urlsplit(server).password is not None
