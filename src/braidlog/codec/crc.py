"""CRC-32C of any buffer.

Knows: one polynomial. Refuses to know: which bytes of a format it covers.

The `crc32c` package rather than `google-crc32c`: both reach the same speed, and this one takes a writable memoryview,
so a batch inside a receive buffer is checked without being copied first (docs/adr/0001-record-batch-v2.md).
"""

from crc32c import crc32c

__all__ = ["crc32c"]
