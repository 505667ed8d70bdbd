"""Text of task files: `.gz` is read as it is, and so are the files inside an archive."""

import gzip
import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paribus.errors import DataError
from paribus.project import Source


def save(path: Path, text: str) -> None:
    """Write `text` as UTF-8, compressed where the name ends in `.gz`."""
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def text_of(source: Source) -> str:
    """The whole file, without a byte order mark."""
    ((_, text),) = members(source)
    if not text.strip():
        raise DataError(f"{source}: the file is empty")
    return text


def lines(source: Source) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1. Only a line feed ends one: text may hold Unicode's other breaks."""
    found = text_of(source).split("\n")
    if not found[-1]:
        found.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(found, 1))


LONE = re.compile(r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]")
"""An escape of half a character beyond U+FFFF, without the other half."""


def from_json(text: str) -> Any:
    """The data in a JSON text. Raises JSONDecodeError, also for what Python reads but nothing can store."""
    try:
        found = json.loads(text)
        if LONE.search(text):  # the escape of a backslash looks like one too, so it is tried
            json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError:
        raise
    except UnicodeEncodeError:
        place = LONE.search(text)
        raise json.JSONDecodeError("half of a surrogate pair", text, place.start() if place else 0) from None
    except RecursionError:
        raise json.JSONDecodeError("nested too deep", text, 0) from None
    except ValueError as error:  # a number of thousands of digits
        raise json.JSONDecodeError(str(error), text, 0) from None
    return found


def members(source: Source, ending: str = "") -> Iterator[tuple[str, str]]:
    """Name and text of each file that `source` is, or holds under a name with that ending, in no particular order.

    Names are relative to `source`; hidden files, which some systems add to archives, are passed over.
    """
    try:
        if source.inside:
            found = _tar(source) if tarfile.is_tarfile(source.path) else _zip(source)
        elif source.path.is_dir():
            found = ((str(path.relative_to(source.path)), path.read_bytes()) for path in source.files())
        else:
            data = source.path.read_bytes()
            found = iter([("", gzip.decompress(data) if source.path.suffix == ".gz" else data)])
        empty = True
        for name, data in found:
            if name and (not name.endswith(ending) or any(part.startswith(".") for part in name.split("/"))):
                continue
            empty = False
            yield name, _decoded(Source(source.path, f"{source.inside}/{name}".strip("/")), data)
        if empty:
            raise DataError(f"{source.path}: holds no {source.inside or 'files'}")
    except (RuntimeError, NotImplementedError) as error:  # zipfile's, for a password or a method it does not know
        raise DataError(f"{source.path}: cannot be unpacked ({error})") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{source.path}: the compressed file is cut short or damaged ({error})") from None
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read ({error.strerror})") from None


def _tar(source: Source) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(source.path) as archive:
        for member in archive:
            content = archive.extractfile(member) if _belongs(source, member.name) else None
            if content is not None:  # a folder has none
                yield member.name[len(source.inside) :].strip("/"), content.read()


def _zip(source: Source) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(source.path) as archive:
        for name in archive.namelist():
            if _belongs(source, name) and not name.endswith("/"):
                yield name[len(source.inside) :].strip("/"), archive.read(name)


def _belongs(source: Source, name: str) -> bool:
    return f"{name}/".startswith(f"{source.inside}/")


def _decoded(source: Source, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{source}, line {line}: not UTF-8 (0x{error.object[error.start]:02x})") from None
