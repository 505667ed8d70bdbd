"""HTML: one page that needs nothing else."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from paribus.project import PACKAGE
from paribus.spec.base import digest
from paribus.tables.render import digits
from paribus.tables.table import Cell, Column, Row, Table

_STYLE = PACKAGE / "dashboards" / "pages" / "style.css"


def render(table: Table) -> str:
    """`table` as a page of its own."""
    head = f"<h1>{escape(table.title)}</h1>"
    if table.question:
        head += f'\n<p class="question">{escape(table.question)}</p>'
        head += f'\n<p class="expected">Expected: {escape(table.expect or "")}</p>'
    head += "".join(f'\n<p class="warning"><strong>{escape(warning)}</strong></p>' for warning in table.warnings)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(table.title)}</title>
<style>{style()}</style>
</head>
<body>
{head}
{fragment(table)}
{f"<h2>Runs</h2>{listed}" if (listed := runs(table)) else ""}
</body>
</html>
"""


def style() -> str:
    """What all pages look like."""
    return _STYLE.read_text(encoding="utf-8")


def fragment(table: Table, runs: str = "") -> str:
    """`table` and its notes, to stand in a page; `runs`: the address of the page that has its runs, if another."""
    table = digits.shortened(table)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in digits.notes(table))
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">
<table class="sortable">
<thead>
{_head(table)}
</thead>
{_body(table, runs)}
</table>
</div>
<ul class="notes">
{notes}
</ul>"""


def _head(table: Table) -> str:
    parts = digits.parts(table).items()
    spans = (f'<th scope="colgroup" colspan="{count}">{name}</th>' for name, count in parts)
    names = (f"{column.label}{digits.unit(column)}{digits.arrow(column)}" for column in table.columns)
    heads = (f'<th scope="col">{escape(name)}</th>' for name in names)
    return f'<tr><td></td>{"".join(spans)}</tr>\n<tr><th scope="col">System</th>{"".join(heads)}</tr>'


def _body(table: Table, runs: str) -> str:
    lines = []
    for group, rows in digits.groups(table):
        lines.append("<tbody>")
        if group:
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(table.columns) + 1}">{escape(group)}</th></tr>')
        lines += [_row(row, table, runs) for row in rows]
        lines.append("</tbody>")
    return "\n".join(lines)


def _row(row: Row, table: Table, runs: str) -> str:
    pairs = enumerate(zip(row.cells, table.columns, strict=True))
    cells = (_cell(cell, column, row, digits.is_text(table, index), runs) for index, (cell, column) in pairs)
    kind = ' class="baseline"' if row.baseline else ""
    return f'<tr{kind}><th scope="row"><bdi>{escape(digits.label(row))}</bdi></th>{"".join(cells)}</tr>'


def _cell(cell: Cell | None, column: Column, row: Row, text: bool, runs: str) -> str:
    shown = escape(digits.number(cell, column))
    if cell and cell.samples:
        label = f"n={len(cell.samples)}, runs of {digits.label(row)}"
        keys = ", ".join(sample.run for sample in cell.samples)
        link = f'href="{escape(runs)}#{anchor(row.key)}" title="{escape(keys)}" aria-label="{escape(label)}"'
        shown += f'&nbsp;<a class="n" {link}>{digits.count(cell)}</a>'
    if cell and cell.best:
        shown = f"<strong>{shown}</strong>"
    small = "".join(f"<small>{escape(line)}</small>" for line in digits.below(cell, column))
    kind = " ".join(name for name, applies in (("published", column.published), ("text", text)) if applies)
    return f'<td class="{kind}"{_sorted_by(cell, row)}>{shown}{small}</td>'


def _sorted_by(cell: Cell | None, row: Row) -> str:
    """What the script sorts a row by, where not by the cell's text: arms by ours, the paper's other rows by theirs."""
    if cell is None:
        return ""
    if cell.value is None:
        return f' data-value="{"" if row.arm else cell.published}"'
    return f' data-value="{cell.value}"' if isinstance(cell.value, int | float) else ""


def anchor(arm: str) -> str:
    """The id of the place where an arm's runs are."""
    return f"runs-{digest(arm)}"


def runs(table: Table) -> str:
    """Every run by arm, with the keys of its stages. Those of an arm are seen when a link led there."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in table.provenance.get("runs", ()):
        found.setdefault(run["arm"], []).append(run)
    return "\n".join(_runs_of(arm, members) for arm, members in found.items())


def _runs_of(arm: str, members: Sequence[Mapping[str, Any]]) -> str:
    name = escape(digits.plain(arm))
    states = Counter(run["state"] for run in members)
    told = ", ".join(f"{count} {state}" for state, count in states.items())
    lines = "\n".join(
        f'<tr><th scope="row"><code>{run["run"]}</code></th><td>{run["seed"]}</td><td class="text">{run["state"]}</td>'
        f'<td class="text">{" ".join(f"<code>{key}</code>" for key in run["stages"])}</td></tr>'
        for run in members
    )
    return f"""<section class="runs" id="{anchor(arm)}">
<h3><a href="#{anchor(arm)}"><bdi>{name}</bdi></a>: {told}</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Runs of {name}">
<table>
<thead><tr><th scope="col">Run</th><th scope="col">Seed</th><th scope="col" class="text">State</th>\
<th scope="col" class="text">Stages</th></tr></thead>
<tbody>
{lines}
</tbody>
</table>
</div>
</section>"""
