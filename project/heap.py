"""What the C library does with memory that is freed."""

import os
from collections.abc import Mapping
from contextlib import suppress

# Of glibc's malloc.h.
_MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -3, -2, -1
_LARGEST = 2**25  # bytes, the most for the first: larger blocks come from what is spare, if it fits
_SPARE = 2**28  # bytes; addresses only, until something is written there


def keep(environ: Mapping[str, str] = os.environ) -> None:
    """Let this process use freed memory again instead of returning it, up to half a gigabyte.

    By itself glibc asks the system for every block of many megabytes and gives it back afterwards,
    so that each batch gets its pages one by one, cleared: to normalise 64 images of 224 x 224 took
    20 ms so, and 3.5 ms in memory that is there (AMD EPYC, glibc 2.36, torch 2.14.1). Other C
    libraries are left alone, and glibc's if the user has told it what to do.
    """
    told = any(name.startswith("MALLOC_") and name.endswith("_") for name in environ)
    if told or "glibc.malloc" in environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(ImportError, OSError, AttributeError, TypeError):  # not glibc
        import ctypes

        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TOP_PAD, _SPARE)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _SPARE)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.free(libc.malloc(_LARGEST // 2))  # from here on there is something spare
