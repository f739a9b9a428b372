"""Files that are mapped to be read once."""

from __future__ import annotations

import mmap


def release(data: mmap.mmap, begin: int, end: int) -> None:
    """Lets the pages of a read-only mapping go that hold bytes begin … end, after they were read.

    They stay in the file cache while there is room, but no longer count as this process's memory: a model that is read
    once would otherwise seem to take all of its size.
    """
    begin -= begin % mmap.PAGESIZE
    data.madvise(mmap.MADV_DONTNEED, begin, end - begin)
