"""Which boot of the machine this is."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """What tells this boot from every other; empty where the system does not tell."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
