"""The terminal: a rich renderable. Columns that do not fit beside the others go below, ours apart from the paper's."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from paribus.tables.render import digits
from paribus.tables.table import Column, Row, Table

_GAP = 3  # characters between two columns


def show(table: Table, width: int = 100) -> RenderableType:
    """`table` for rich's `Console.print` at `width` characters: the question, the table, the notes."""
    table = digits.shortened(table)
    parts: list[RenderableType] = [Text(digits.plain(table.title), style="bold")]
    if table.question:
        parts.append(Text(f"{digits.plain(table.question)}\nExpected: {digits.plain(table.expect or '')}"))
    parts += [Text(digits.plain(warning), style="bold yellow") for warning in table.warnings]
    room = width - max(len(_label(row)) for row in table.rows)
    for columns in _panels(table, room):
        parts += ["", _grid(table, columns, room)]
    return Group(*parts, "", *(Text(note, style="dim") for note in digits.notes(table)))


def _panels(table: Table, room: int) -> Iterator[list[int]]:
    """The columns, in as few panels as fit into `room` characters."""
    widths = [digits.width(table, index) + _GAP for index in range(len(table.columns))]
    panel: list[int] = []
    for index, column in enumerate(table.columns):
        full = sum(widths[other] for other in panel) + widths[index] > room
        ours_start = sum(widths) > room and panel and table.columns[panel[-1]].published != column.published
        if panel and (full or ours_start):
            yield panel
            panel = []
        panel.append(index)
    yield panel


def _grid(table: Table, columns: Sequence[int], room: int) -> Grid:
    """The rows that have a cell in `columns`; arms have a row wherever ours are shown, with or without values.

    Widths are ours: left to itself, rich may cut numbers off at the right.
    """
    headers = {index: digits.header(table.columns[index], table) for index in columns}
    widths = {index: digits.width(table, index) for index in columns}
    whole = {index: max(widths[index], len(headers[index])) for index in columns}
    if sum(width + _GAP for width in whole.values()) <= room:
        widths = whole
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    grid.add_column("", no_wrap=True)
    for index in columns:
        left = digits.is_text(table, index)
        grid.add_column(Text(headers[index]), justify="left" if left else "right", width=widths[index])
    for group, members in digits.groups(table):
        ours = any(not table.columns[index].published for index in columns)
        rows = [row for row in members if any(row.cells[index] for index in columns) or (row.arm and ours)]
        if group and rows:
            grid.add_row(Text(group, style="italic"))
        for row in rows:
            cells = (_cell(row, table.columns[index], index) for index in columns)
            grid.add_row(Text(_label(row)), *cells)
        grid.add_section()
    return grid


def _label(row: Row) -> str:
    return f"  {digits.label(row)}" if row.group else digits.label(row)


def _cell(row: Row, column: Column, index: int) -> Text:
    cell = row.cells[index]
    value, *difference = digits.lines(cell, column)
    theirs = column.published or (cell is not None and cell.value is None)
    text = Text(value, style="dim" if theirs else "bold" if cell and cell.best else "")
    for line in difference:
        text.append(f"\n{line}", style="cyan")
    return text
