"""Errors of lake tables."""


class LakeError(Exception):
    """The table cannot do what was requested."""


class NoTableError(LakeError):
    """The table does not exist."""
