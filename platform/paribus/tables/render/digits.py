"""Numbers and headers as short text, the same in every format: the only place that rounds."""

import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import replace

from paribus.spec.table import Value
from paribus.tables.table import Cell, Column, Row, Table
from paribus.tables.verdict import Verdict

DECIMALS = {"points": 1, "nats": 3, "bits": 3, "perplexity": 1}
LONGEST = 80  # characters of a label; the formats for programs have all of it
BROKEN = 24  # characters that a column of texts gets where room is short
_DIRECTIONS = set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
LEGEND = "\u2191 higher is better, \u2193 lower is better."


def value(cell: Cell | None, column: Column) -> str:
    """'4.512 (n=3)', or without its n where it is no aggregate; '' for none."""
    return f"{number(cell, column)} {count(cell)}".rstrip()


def number(cell: Cell | None, column: Column) -> str:
    """'4.512'; a published value as its paper prints it; '' for none."""
    if cell is None or cell.value is None:
        return ""
    if column.unit == "as printed":
        return printed(cell.value)
    assert isinstance(cell.value, int | float)
    return f"{cell.value:.{DECIMALS[column.unit]}f}"


def count(cell: Cell | None) -> str:
    """'(n=3)'; '' where a value is no aggregate."""
    return f"(n={len(cell.samples)})" if cell and cell.samples else ""


def printed(value: Value) -> str:
    """A published value; a list is the values of a sweep."""
    if isinstance(value, list):
        return ", ".join(printed(item) for item in value)
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, float) and abs(value) >= 1e15:
        return f"{value:.3g}"
    return "" if value is None else str(value)


def lines(cell: Cell | None, column: Column) -> list[str]:
    """The value, and what stands below it."""
    first, more = value(cell, column), below(cell, column)
    return more if more and not first else [first, *more]


def below(cell: Cell | None, column: Column) -> list[str]:
    """Where there is a difference: that, from two pairs on its interval, and what may be said of it. Last, in a column
    of ours, the paper's value.
    """
    if cell is None:
        return []
    text = []
    if (found := cell.difference) is not None:
        decimals = _decimals(cell, column)
        pairs = f" (pairs={found.n})" if found.n != len(cell.samples) else ""
        text.append(signed(found.mean, decimals) + pairs)
        if found.low is not None and found.high is not None:
            text.append(f"[{signed(found.low, decimals)}, {signed(found.high, decimals)}]")
        text += verdict(cell.verdict, decimals) if cell.verdict else []
    return text + ([] if cell.published is None else [f"published {printed(cell.published)}"])


def _decimals(cell: Cell, column: Column) -> int:
    """As many as the column's unit has, and more where a difference that is told from nothing would round to it."""
    decimals, found = DECIMALS[column.unit], cell.difference
    if found and cell.verdict and cell.verdict.kind in ("helps", "hurts"):
        ends = [abs(end) for end in (found.mean, found.low, found.high) if end]
        while decimals < 6 and any(round(end, decimals) == 0 for end in ends):
            decimals += 1
    return decimals


def verdict(found: Verdict, decimals: int) -> list[str]:
    """What may be said of a difference; where it is not known to be one, what could be seen and what it would take."""
    words: list[str] = [found.kind]
    if found.within_sesoi:
        words[0] += f", < {found.sesoi:g}" if found.kind != "equivalent" else f" \u00b1{found.sesoi:g}"
    if found.detectable is not None:
        words.append(f"MDE {_least(found.detectable, decimals)}")
    if found.kind == "inconclusive" and found.sesoi is not None:
        words.append(f"+{seeds(found.more_seeds)}")
        if found.hours is not None:
            words.append(f"({hours(found.hours)})")
    return words


def _least(value: float, decimals: int) -> str:
    """A positive number, rounded up, so that it promises no more than it can."""
    return f"{math.ceil(value * 10**decimals) / 10**decimals:,.{decimals}f}" if value < 1e6 else f"{value:.0e}"


def seeds(count: int | None) -> str:
    """A number of seeds; None is more than 10,000."""
    return "10,000 seeds or more" if count is None else f"{count:,} seed{'' if count == 1 else 's'}"


def hours(count: float) -> str:
    """A time in hours."""
    return f"{count:.2g} h" if count < 99.5 else f"{count:,.0f} h"


def signed(value: float, decimals: int) -> str:
    """A difference with its sign, unless it rounds to nothing."""
    text = f"{value:+.{decimals}f}"
    return text if text.strip("+-0.") else text[1:]


def arrow(column: Column) -> str:
    """Which way is better: up, down or nothing."""
    return {True: " \u2191", False: " \u2193", None: ""}[column.higher_is_better]


def unit(column: Column) -> str:
    """The unit where the label does not say it."""
    return f" ({column.unit})" if column.unit in ("points", "nats") else ""


def header(column: Column, table: Table) -> str:
    """Label, unit and direction; 'published' where the table also has columns of ours."""
    mixed = column.published and not all(other.published for other in table.columns)
    return f"{plain(column.label)}{unit(column)}{', published' if mixed else ''}{arrow(column)}"


def parts(table: Table) -> dict[str, int]:
    """The name of each part of the columns, and how many there are: the paper's, then ours."""
    theirs = sum(column.published for column in table.columns)
    ours = "Ours and published" if any(column.beside for column in table.columns) else "Ours"
    counts = {"Published": theirs, ours: len(table.columns) - theirs}
    return {name: count for name, count in counts.items() if count}


def label(row: Row) -> str:
    """The row's label; the baseline is named as such."""
    return f"{plain(row.label)} (baseline)" if row.baseline else plain(row.label)


def shortened(table: Table) -> Table:
    """`table` with labels of at most LONGEST characters."""
    names = short([row.label for row in table.rows], LONGEST)
    return replace(table, rows=tuple(replace(row, label=names[row.label]) for row in table.rows))


def short(names: Iterable[str], longest: int) -> dict[str, str]:
    """Each of `names` in at most `longest` characters, so that two names stay two."""
    found: dict[str, str] = {}
    taken = set()
    for name in dict.fromkeys(names):
        ends = itertools.chain(["\u2026"], (f"\u2026 {number}" for number in itertools.count(2)))
        cut = (name[: longest - len(end)] + end for end in ends)
        found[name] = name if len(name) <= longest else next(text for text in cut if text not in taken)
        taken.add(found[name])
    return found


def plain(text: str) -> str:
    """`text` on one line, without the characters that turn the direction of what follows or steer a terminal."""
    kept = (" " if character.isspace() else character for character in text if character not in _DIRECTIONS)
    return "".join(character for character in kept if unicodedata.category(character) != "Cc")


def groups(table: Table) -> Iterator[tuple[str, list[Row]]]:
    """The rows by group, in order."""
    for group, rows in itertools.groupby(table.rows, key=lambda row: row.group):
        yield group, list(rows)


def is_text(table: Table, index: int) -> bool:
    """Whether column `index` holds words, which read better from the left."""
    values = (row.cells[index] for row in table.rows)
    return any(isinstance(cell.value, str) and not cell.value[:1].isdigit() for cell in values if cell)


def width(table: Table, index: int) -> int:
    """Characters that column `index` needs: numbers and the words of its header stay whole, long texts are broken."""
    column = table.columns[index]
    longest = max(len(line) for row in table.rows for line in lines(row.cells[index], column))
    if is_text(table, index):
        longest = min(longest, BROKEN)
    return max(longest, *map(len, header(column, table).split()))


def notes(table: Table) -> list[str]:
    """The claims, what the arrows mean where there are any, and the notes."""
    directed = any(column.higher_is_better is not None for column in table.columns)
    claims = [f"Claim {claim.sentence}." for claim in table.claims]
    return [plain(note) for note in (*claims, *([LEGEND] if directed else []), *table.notes)]
