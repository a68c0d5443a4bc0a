"""How much memory can still be had; what a system does not tell is left out."""

from pathlib import Path


def _read_number(*files: str) -> int | None:
    """Return the first number of the first file that has one."""
    for file in files:
        try:
            return int(Path(file).read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return None


def available_memory() -> int | None:
    """Return the bytes of memory that can still be had, by the system and by a container."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    limit = _read_number("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    used = _read_number(
        "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"
    )
    if limit is not None and used is not None:
        found.append(max(0, limit - used))
    return min(found, default=None)
