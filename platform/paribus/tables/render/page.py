"""HTML: one page that needs nothing else."""

from html import escape

from paribus.project import PACKAGE
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
</body>
</html>
"""


def style() -> str:
    """What all pages look like."""
    return _STYLE.read_text(encoding="utf-8")


def fragment(table: Table) -> str:
    """`table` and its notes, to stand in a page."""
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in digits.notes(table))
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">
<table class="sortable">
<thead>
{_head(table)}
</thead>
{_body(table)}
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


def _body(table: Table) -> str:
    lines = []
    for group, rows in digits.groups(table):
        lines.append("<tbody>")
        if group:
            lines.append(f'<tr><th scope="rowgroup" colspan="{len(table.columns) + 1}">{escape(group)}</th></tr>')
        lines += [_row(row, table) for row in rows]
        lines.append("</tbody>")
    return "\n".join(lines)


def _row(row: Row, table: Table) -> str:
    pairs = enumerate(zip(row.cells, table.columns, strict=True))
    cells = (_cell(cell, column, row, digits.is_text(table, index)) for index, (cell, column) in pairs)
    kind = ' class="baseline"' if row.baseline else ""
    return f'<tr{kind}><th scope="row"><bdi>{escape(digits.label(row))}</bdi></th>{"".join(cells)}</tr>'


def _cell(cell: Cell | None, column: Column, row: Row, text: bool) -> str:
    value, below = digits.value(cell, column), digits.below(cell, column)
    small = "".join(f"<small>{escape(line)}</small>" for line in below)
    shown = f"<strong>{escape(value)}</strong>" if cell and cell.best else escape(value)
    runs = f' title="{escape(", ".join(sample.run for sample in cell.samples))}"' if cell and cell.samples else ""
    kind = " ".join(name for name, applies in (("published", column.published), ("text", text)) if applies)
    return f'<td class="{kind}"{_sorted_by(cell, row)}{runs}>{shown}{small}</td>'


def _sorted_by(cell: Cell | None, row: Row) -> str:
    """What the script sorts a row by, where not by the cell's text: arms by ours, the paper's other rows by theirs."""
    if cell is None:
        return ""
    if cell.value is None:
        return f' data-value="{"" if row.arm else cell.published}"'
    return f' data-value="{cell.value}"' if isinstance(cell.value, int | float) else ""
