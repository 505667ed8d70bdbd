"""LaTeX: a table float with booktabs."""

import itertools
import re
import textwrap

from paribus.tables.render import digits
from paribus.tables.table import Cell, Row, Table

_PAGE = 80  # characters of a line of small print; a wider table is scaled down
_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "[": "{[}", "]": "{]}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"{''}", "`": r"\textasciigrave{}", "\n": " ",
    "\u2191": r"$\uparrow$", "\u2193": r"$\downarrow$", "\u00b1": r"$\pm$", "\u00d7": r"$\times$",
    "\u2020": r"$\dagger$", "\u2713": r"$\surd$", "\u2717": r"$\times$",
    "\u2026": r"\ldots{}", "\u2013": "--", "\u2014": "---", "\u2018": "`", "\u2019": "'",
    "\u201c": "``", "\u201d": "''",
}  # fmt: skip


def render(table: Table) -> str:
    """`table` as a snippet for \\input."""
    table = digits.shortened(table)
    notes = " ".join(escape(note) for note in digits.notes(table))
    warnings = [rf"\textbf{{{escape(warning)}}}\par\smallskip" for warning in table.warnings]
    lines = [
        r"% Needs \usepackage{booktabs} and \usepackage{graphicx}.",
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{{escape('. '.join(filter(None, [table.title, table.question])))}}}",
        rf"\label{{tab:{''.join(c if c.isascii() and c.isalnum() else '-' for c in table.name)}}}",
        *warnings,
        r"\small",
        *_scaled(table),
        r"\par\smallskip",
        rf"\begin{{minipage}}{{\linewidth}}\footnotesize {notes}\end{{minipage}}",
        r"\end{table}",
        "",
    ]
    return "\n".join(lines)


def _scaled(table: Table) -> list[str]:
    lines = _tabular(table)
    labels = max(len(digits.label(row)) for row in table.rows)
    if labels + sum(digits.width(table, index) + 2 for index in range(len(table.columns))) <= _PAGE:
        return lines
    return [r"\resizebox{\linewidth}{!}{%", *lines[:-1], lines[-1] + "%", "}"]


def _tabular(table: Table) -> list[str]:
    everything = range(len(table.columns))
    lines = [rf"\begin{{tabular}}{{l{''.join(_kind(table, index) for index in everything)}}}", r"\toprule"]
    if len(parts := digits.parts(table)) == 2:
        (theirs, published), (mine, ours) = parts.items()
        lines += [
            rf"& \multicolumn{{{published}}}{{c}}{{{theirs}}} & \multicolumn{{{ours}}}{{c}}{{{mine}}} \\",
            rf"\cmidrule(lr){{2-{published + 1}}} \cmidrule(lr){{{published + 2}-{published + ours + 1}}}",
        ]
    lines.append(_line("", *(_head(table, index) for index in everything)))
    for group, rows in digits.groups(table):
        lines.append(r"\midrule")
        if group:
            lines.append(rf"\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\textit{{{escape(group)}}}}} \\")
        for row in rows:
            lines += _rows(row, table)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _kind(table: Table, index: int) -> str:
    """Numbers to the right, words to the left, and long ones broken."""
    if not digits.is_text(table, index):
        return "r"
    return rf"p{{{digits.BROKEN / 2}em}}" if digits.width(table, index) == digits.BROKEN else "l"


def _head(table: Table, index: int) -> str:
    """The header, in lines no wider than the column."""
    column = table.columns[index]
    text = f"{column.label}{digits.unit(column)}{digits.arrow(column)}"
    lines = map(escape, textwrap.wrap(text, digits.width(table, index), break_long_words=False))
    side = "l" if digits.is_text(table, index) else "r"
    return rf"\shortstack[{side}]{{" + r"\\".join(lines) + "}"


def _rows(row: Row, table: Table) -> list[str]:
    """A line of values and, for an arm, lines of differences and intervals below it."""
    cells = [digits.lines(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
    first, *below = itertools.zip_longest(*cells, fillvalue="")
    values = [_value(text, cell) for text, cell in zip(first, row.cells, strict=True)]
    return [_line(escape(digits.label(row)), *values), *(_line("", *map(_small, line)) for line in below)]


def _value(text: str, cell: Cell | None) -> str:
    """The first line of a cell."""
    if cell is not None and cell.value is None:
        return _small(text)
    return rf"\textbf{{{_cell(text)}}}" if cell and cell.best else _cell(text)


def _small(text: str) -> str:
    return rf"{{\footnotesize {_cell(text)}}}" if text else ""


def _cell(text: str) -> str:
    """A cell; the hyphen before a number is a minus."""
    return re.sub(r"(?<!\w)-(?=\d)", "$-$", escape(text))


def _line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def escape(text: str) -> str:
    """Text in which nothing is markup, and a character that LaTeX's own fonts lack is its code point."""
    return "".join(
        _ESCAPES.get(character, character if ord(character) < 0x180 else rf"\texttt{{U+{ord(character):04X}}}")
        for character in digits.plain(text)
    )
