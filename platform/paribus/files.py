"""Small files: checksums, writes that are whole or not there, caches that may be lost."""

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote


def sha256(path: Path) -> str:
    """The checksum of a file's content, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


TEMPORARY = ".*.[0-9]*.[0-9]*"
"""The pattern of what `temporary` gives."""


def temporary(path: Path) -> Path:
    """A name beside `path`, nobody else's, for what becomes `path` when it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a small file so that it is there whole or not at all; text as UTF-8."""
    partial = temporary(path)
    try:
        with partial.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_cache(path: Path) -> dict[str, Any]:
    """What a JSON file remembers; nothing where it is missing or torn, which costs time and nothing else."""
    try:
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def write_cache(path: Path, known: dict[str, Any]) -> None:
    """Remember `known`, if the disk can be written: planning on a read-only store still works."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(known))
    except OSError:
        pass


def file_name(queue: str) -> str:
    """The name of a queue (experiment@scale) as a file name."""
    return quote(queue, safe="@ ")
