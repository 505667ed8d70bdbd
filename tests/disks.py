"""A small disk of a test's own, and one that is full."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paribus.store.store import Store


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """A disk at `folder`, which is made; False where nobody may mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full_until(store: Store, condition: Callable[[], object], wait: Callable[[], None]) -> None:
    """Keep the disk of `store` full to the last page until `condition` holds.

    Who works there writes and deletes at the same time: what is free when it is asked may be less, or more, a moment
    later. So the disk is filled again and again.
    """
    filler = store.root / "filler"
    with filler.open("wb") as stream:
        while not condition():
            with suppress(OSError):
                size = os.fstat(stream.fileno()).st_size
                os.posix_fallocate(stream.fileno(), size, max(1, store.free - 4096))
            wait()
    filler.unlink()
