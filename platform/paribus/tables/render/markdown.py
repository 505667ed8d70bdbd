"""Markdown: GitHub's pipe table."""

from paribus.tables.render import digits
from paribus.tables.table import Cell, Column, Table


def render(table: Table) -> str:
    """`table` as Markdown."""
    table = digits.shortened(table)
    lines = [f"## {_escape(table.title)}", ""]
    if table.question:
        lines += [f"*{_escape(table.question)}* Expected: {_escape(table.expect or '')}", ""]
    for warning in table.warnings:
        lines += [f"**{_escape(warning)}**", ""]
    lines.append(_line("", *(_escape(digits.header(column, table)) for column in table.columns)))
    words = (digits.is_text(table, index) for index in range(len(table.columns)))
    lines.append(_line("---", *("---" if left else "---:" for left in words)))
    for group, rows in digits.groups(table):
        if group:
            lines.append(_line(f"*{_escape(group)}*", *("" for _ in table.columns)))
        for row in rows:
            cells = (_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True))
            lines.append(_line(_escape(digits.label(row)), *cells))
    lines += ["", *(f"- {_escape(note)}" for note in digits.notes(table)), ""]
    return "\n".join(lines)


def _cell(cell: Cell | None, column: Column) -> str:
    value, *below = map(_escape, digits.lines(cell, column))
    return "<br>".join([f"**{value}**" if cell and cell.best else value, *below])


def _line(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _escape(text: str) -> str:
    """Text in which nothing is markup; backticks stay, notes use them for commands."""
    text = digits.plain(text)
    for character in "\\|*_<[":
        text = text.replace(character, f"\\{character}")
    return text
