"""What goes wrong for a reason a user can mend. The command line prints these as one line and exits with code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class ParibusError(Exception):
    """Base of all errors a user can mend; the message says what was found and what would be accepted."""


class SpecError(ParibusError):
    """A file or an override says something the vocabulary does not know. Names file, key, finding and choices."""


class DataError(ParibusError):
    """A corpus or task file cannot be used as it is. Names the file and, where there is one, the line."""


class StoreError(ParibusError):
    """The store cannot be read or written as it is (read-only, full, from a newer format)."""


class DiskFull(StoreError):
    """The store's disk is full. What was begun is dropped, and goes on when there is room."""


class LostLease(ParibusError):
    """Another worker took this work over while this one was asleep or unreachable; its result must not count."""


class Corrupt(ParibusError):
    """A finished stage or a checkpoint fails its checksum; it has been set aside and will be computed again."""


class Stopped(Exception):
    """This run was to stop: a user cancelled it, or a signal asked its worker to end. No error."""


@contextmanager
def in_one_line() -> Iterator[None]:
    """End the program as that says."""
    try:
        yield
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
