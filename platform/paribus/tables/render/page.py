"""HTML: one page that needs nothing else."""

from html import escape

from paribus.tables.render import digits
from paribus.tables.table import Cell, Column, Row, Table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --page: Canvas; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.35rem; margin-bottom: .3rem; }
.expect, .notes { color: color-mix(in srgb, CanvasText 75%, Canvas); }
.scroll { overflow: auto; max-height: 85vh; border-block: 2px solid CanvasText; margin: 1.2rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
thead { position: sticky; top: 0; background: var(--page); box-shadow: 0 1px CanvasText; z-index: 1; }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top; }
th { font-weight: 600; }
th[scope=row], thead th:first-child { text-align: left; }
th[scope=row] { font-weight: 400; white-space: nowrap; }
th[scope=colgroup] { text-align: center; border-bottom: 1px solid var(--line); }
tbody th[scope=rowgroup] { text-align: left; font-style: italic; font-weight: 400; color: var(--soft); }
tbody { border-top: 1px solid var(--line); }
td.text { text-align: left; }
td.published { color: color-mix(in srgb, CanvasText 65%, Canvas); }
td small { display: block; white-space: nowrap; color: var(--soft); }
.notes { font-size: .87rem; padding-left: 1.1rem; }
"""


def render(table: Table) -> str:
    """`table` as a page of its own."""
    head = f"<h1>{escape(table.title)}</h1>"
    if table.question:
        head += f"\n<p>{escape(table.question)}<br>"
        head += f'<span class="expect">Expected: {escape(table.expect or "")}</span></p>'
    head += "".join(f'\n<p class="warning"><strong>{escape(warning)}</strong></p>' for warning in table.warnings)
    notes = "\n".join(f"<li>{escape(note)}</li>" for note in digits.notes(table))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(table.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{head}
<div class="scroll">
<table>
<thead>
{_head(table)}
</thead>
{_body(table)}
</table>
</div>
<ul class="notes">
{notes}
</ul>
</body>
</html>
"""


def _head(table: Table) -> str:
    published = sum(column.published for column in table.columns)
    ours = len(table.columns) - published
    parts = (("Published", published), ("Ours", ours))
    spans = (f'<th scope="colgroup" colspan="{count}">{name}</th>' for name, count in parts if count)
    names = (f"{column.label}{digits.unit(column)}{digits.arrow(column)}" for column in table.columns)
    heads = (f'<th scope="col">{escape(name)}</th>' for name in names)
    return f"<tr><th></th>{''.join(spans)}</tr>\n<tr><th></th>{''.join(heads)}</tr>"


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
    cells = (_cell(cell, column, digits.is_text(table, index)) for index, (cell, column) in pairs)
    return f'<tr><th scope="row"><bdi>{escape(digits.label(row))}</bdi></th>{"".join(cells)}</tr>'


def _cell(cell: Cell | None, column: Column, text: bool) -> str:
    value, *difference = digits.lines(cell, column)
    small = "".join(f"<small>{escape(line)}</small>" for line in difference)
    shown = f"<strong>{escape(value)}</strong>" if cell and cell.best else escape(value)
    runs = f' title="{escape(", ".join(sample.run for sample in cell.samples))}"' if cell and cell.samples else ""
    kind = " ".join(name for name, applies in (("published", column.published), ("text", text)) if applies)
    return f'<td class="{kind}"{runs}>{shown}{small}</td>'
