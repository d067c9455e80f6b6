"""Whose a data folder is, and which versions of braidlog read it.

Invariant: whoever changes any file of a folder so that the version before cannot read it raises `FORMAT` (ADR 7).
"""

import msgspec

FOLDER_MAGIC = b"BRAIDFLD"
FORMAT = 1


class FolderIdentity(msgspec.Struct, frozen=True):
    folder_id: str
    format: int
    internal_topics: tuple[str, ...] = ()
    """Topics that a node has made for itself: one of these that is not there was lost."""
    cluster: str = ""
    """The cluster whose metadata this folder follows; empty: its own."""


def unreadable(identity: FolderIdentity) -> str | None:
    """Why this version leaves a folder alone, if it has to: whatever it cannot read in there has a format of its own."""
    if identity.format == FORMAT:
        return None
    if identity.format > FORMAT:
        return (
            f"a later version of braidlog has written to it (folder format {identity.format}, this version reads {FORMAT}): "
            "start that version again, or restore a back-up made before the upgrade; nothing was changed"
        )
    return f"its format is {identity.format}, and this version reads {FORMAT}"
