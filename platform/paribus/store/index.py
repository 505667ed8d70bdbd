"""What tables read of finished stages, in one file: to open thousands of folders takes seconds, this takes a moment.

A cache of stages/, which may be deleted. Whoever reads brings it up to date; an entry holds as long as the folder and
the rows.jsonl it was read from are not touched, and the whole as long as it matches its checksum.
"""

import hashlib
import io
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl

from paribus.errors import Corrupt
from paribus.files import write_atomically
from paribus.plan.runs import PlannedRun
from paribus.store.store import Store

NAME = "index-3"
"""To be counted up when SCHEMA changes. A sha256, then a Parquet file that it is of."""

FACTS: dict[str, type[pl.DataType]] = {
    "outcome": pl.String,
    "provenance": pl.String,
    "device": pl.String,
    "driver": pl.String,
    "matmul": pl.String,
    "compile": pl.String,
    "sdpa": pl.String,
    "started": pl.Float64,
    "finished": pl.Float64,
    "seconds": pl.Float64,
    "peak_memory_mb": pl.Float64,
}
"""Of a stage's record, numbers last; null where it does not say."""
NUMBERS = ("started", "finished", "seconds", "peak_memory_mb")
ROW: dict[str, type[pl.DataType]] = {
    "task": pl.String,
    "metric": pl.String,
    "split": pl.String,
    "value": pl.Float64,
    "n": pl.Int64,
}
SCHEMA: dict[str, Any] = {"key": pl.String, "touched": pl.Int64, **FACTS, "rows": pl.List(pl.Struct(ROW))}


class Finished:
    """The finished ones among the stages of `runs`. Raises Corrupt where rows do not match their checksum."""

    def __init__(self, store: Store, runs: Iterable[PlannedRun]) -> None:
        self.store = store
        self._stages = _brought_up_to_date(store, {stage.key for run in runs for stage in run.stages})
        self.provenance = cache(store.provenance)

    @cached_property
    def records(self) -> dict[str, dict[str, Any]]:
        """FACTS of each, by its key."""
        return {key: dict(zip(FACTS, facts, strict=True)) for key, *facts in self._stages.drop("rows").iter_rows()}

    def took(self, key: str) -> float:
        """Seconds of a worker on a stage: from its claim to its end, or of its steps, where some were taken before."""
        record = self.records[key]
        return max(float(record["finished"] - record["started"]), record["seconds"] or 0.0)

    @cached_property
    def rows(self) -> pl.DataFrame:
        """What was measured, in the order it was: the stage's key, and the columns of ROW."""
        return self._stages.select("key", "rows").explode("rows").drop_nulls("rows").unnest("rows")


def _brought_up_to_date(store: Store, keys: Collection[str]) -> pl.DataFrame:
    path, stages = store.root / NAME, os.fspath(store.root / "stages")
    known, touched = _read(path), {}
    for key in keys:
        try:
            folder = os.stat(f"{stages}/{key}")
            rows = os.stat(f"{stages}/{key}/rows.jsonl")
            touched[key] = hash((folder.st_mtime_ns, rows.st_ino, rows.st_ctime_ns, rows.st_size))
        except FileNotFoundError:
            if store.has(key):  # without its rows it is damaged, which reading it will say
                touched[key] = 0
    asked = pl.DataFrame(list(touched.items()), {name: SCHEMA[name] for name in ("key", "touched")}, orient="row")
    found = asked.join(known, on=["key", "touched"])
    if missing := touched.keys() - set(found["key"]):
        entries = [entry for key in sorted(missing) if (entry := _entry(store, key, touched[key]))]
        read = pl.DataFrame(entries, SCHEMA, orient="row")
        found = pl.concat([found, read])
        rest = known.filter(pl.col("key").is_in(list(store.keys() - missing)))
        content = io.BytesIO()
        pl.concat([rest, read]).write_parquet(content)
        with suppress(OSError):  # full or read-only: next time the folders are read again
            write_atomically(path, hashlib.sha256(content.getvalue()).digest() + content.getvalue())
    return found.drop("touched")


def _read(path: Path) -> pl.DataFrame:
    with suppress(OSError, pl.exceptions.PolarsError):
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            found = pl.read_parquet(content[32:])
            if found.schema == pl.Schema(SCHEMA):
                return found
    return pl.DataFrame(schema=SCHEMA)


def _entry(store: Store, key: str, touched: int) -> tuple[object, ...] | None:
    finished = store.finished(key)
    if finished is None:
        return None
    record, rows = finished
    try:
        measured = [{**{name: row.get(name) for name in ROW}, "value": float(row["value"])} for row in rows]
        numbers = (None if record.get(fact) is None else float(record[fact]) for fact in FACTS if fact in NUMBERS)
        texts = (None if record.get(fact) is None else str(record[fact]) for fact in FACTS if fact not in NUMBERS)
        return key, touched, *texts, *numbers, measured
    except (KeyError, TypeError, ValueError) as error:
        folder = store.folder(key)
        raise Corrupt(f"{folder}: not as a stage is ({error!r}); remove the folder and run again") from error
