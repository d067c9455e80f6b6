"""CRC-32C of any buffer.

Uses the `crc32c` package rather than `google-crc32c`: both are equally fast, and this one takes a writable
memoryview, so a batch inside a receive buffer is checked without a copy (docs/adr/0001-record-batch-v2.md).
"""

from crc32c import crc32c

__all__ = ["crc32c"]
