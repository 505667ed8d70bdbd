"""Text of task files; `.gz` is read as it is."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from paribus.errors import DataError


def save(path: Path, text: str) -> None:
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def text_of(path: Path) -> str:
    """The whole file, without a byte order mark."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is cut short or damaged ({error})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 (0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1. Only a line feed ends one: text may hold Unicode's other breaks."""
    found = text_of(path).split("\n")
    if not found[-1]:
        found.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(found, 1))
