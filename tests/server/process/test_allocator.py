"""Where glibc is, it takes the settings; large answers then cost no new pages."""

import platform
import resource
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
from braidlog.server.process.process_memory import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
kept = bytearray(1 << 20)
for _ in range(50):
    held = [bytearray(1 << 20) for _ in range(4)]
    del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    held = [bytearray(1 << 20) for _ in range(4)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's: nothing to set")
def test_freed_memory_comes_back_without_new_pages() -> None:
    pages = 4 * (1 << 20) // resource.getpagesize()
    assert faults("kept") < pages < faults("given back")
