"""Memory that is freed stays with the process, unless the user has told malloc what to do."""

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import ctypes, resource, sys
from project import heap
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # no huge pages: one stands for 512 pages
if sys.argv[1] == "keep":
    heap.keep()
for count in range(22):
    if count == 2:
        begun = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(40_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begun)
"""


def faults(how: str, **environ: str) -> int:
    """Pages that the system had to provide."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", COUNT, how]
    return int(subprocess.check_output(command, env=clean | environ, text=True))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc is meant")
def test_freed_memory_is_used_again_unless_the_user_has_decided() -> None:
    assert faults("keep") < 100 < 20_000 < faults("leave")
    assert faults("keep", MALLOC_TOP_PAD_="131072") > 20_000
    assert faults("keep", GLIBC_TUNABLES="glibc.malloc.top_pad=131072") > 20_000
