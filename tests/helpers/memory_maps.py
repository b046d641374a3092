"""The memory maps of this process, as the kernel has them."""

from pathlib import Path


def map_flags(address: int) -> list[str] | None:
    """The flags of the map that an address is in, as the kernel has them; None if it is in none."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if "-" in head and not head.endswith(":"):
            low, high = (int(text, 16) for text in head.split("-"))
            inside = low <= address < high
        elif inside and head == "VmFlags:":
            return rest.split()
    return None
