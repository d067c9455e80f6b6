"""What tables refuse with."""


class LakeError(Exception):
    """The table cannot do what was asked."""


class NoTableError(LakeError):
    """There is no such table."""
