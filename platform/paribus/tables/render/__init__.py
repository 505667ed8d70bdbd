"""A table as text: one file a format. Numbers are rounded in digits, and nowhere else."""

import re
from collections.abc import Callable
from pathlib import Path

from paribus.errors import SpecError
from paribus.spec.base import digest
from paribus.spec.load import suggest
from paribus.tables.render import data, latex, markdown, page
from paribus.tables.table import Table

LONGEST = 200  # bytes of a file's name, of the 255 that file systems take
FORMATS: dict[str, Callable[[Table], str]] = {
    "md": markdown.render,
    "tex": latex.render,
    "html": page.render,
    "csv": data.as_csv,
    "json": data.as_json,
}


def render(table: Table, format: str) -> str:
    """`table` in one of FORMATS; for a terminal there is `paribus.tables.render.terminal`."""
    if format not in FORMATS:
        raise SpecError(f"--format: no format {format!r}" + suggest(format, FORMATS))
    return FORMATS[format](table)


def write_all(table: Table, folder: Path) -> list[Path]:
    """`table` in every format, as `folder`/name.format; what a file's name cannot hold, or is no letter, is a dash."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w@.+=,-]|^\.+", "-", table.name)
    if name != table.name or len(name.encode()) > LONGEST:
        name = f"{name.encode()[:LONGEST].decode(errors='ignore')}-{digest(table.name)}"  # two names stay two
    paths = [folder / f"{name}.{format}" for format in FORMATS]
    for path, format in zip(paths, FORMATS, strict=True):
        path.write_text(render(table, format), encoding="utf-8")
    return paths
