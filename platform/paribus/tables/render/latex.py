"""LaTeX: a table float with booktabs."""

from paribus.tables.render import digits
from paribus.tables.table import Row, Table

_WIDE = 90  # characters of the widest line beyond which the table is scaled down to the text's width
_WORDS = r"p{.35\linewidth}"  # a column of words
_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "[": "{[}", "]": "{]}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "\n": " ",
    "\u2191": r"$\uparrow$", "\u2193": r"$\downarrow$", "\u00b1": r"$\pm$", "\u00d7": r"$\times$",
}  # fmt: skip


def render(table: Table) -> str:
    """`table` as a snippet for \\input."""
    notes = " ".join(escape(note) for note in digits.notes(table))
    lines = [
        r"% Needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[T1]{fontenc}.",
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{{escape('. '.join(filter(None, [table.title, table.question])))}}}",
        rf"\label{{tab:{''.join(c if c.isalnum() else '-' for c in table.name)}}}",
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
    if max(len(line) for line in lines) <= _WIDE:
        return lines
    return [r"\resizebox{\linewidth}{!}{%", *lines[:-1], lines[-1] + "%", "}"]


def _tabular(table: Table) -> list[str]:
    published = sum(column.published for column in table.columns)
    ours = len(table.columns) - published
    kinds = "".join(_WORDS if digits.is_text(table, index) else "r" for index in range(len(table.columns)))
    lines = [rf"\begin{{tabular}}{{l{kinds}}}", r"\toprule"]
    if published and ours:
        lines += [
            rf"& \multicolumn{{{published}}}{{c}}{{Published}} & \multicolumn{{{ours}}}{{c}}{{Ours}} \\",
            rf"\cmidrule(lr){{2-{published + 1}}} \cmidrule(lr){{{published + 2}-{published + ours + 1}}}",
        ]
    heads = (escape(f"{column.label}{digits.unit(column)}{digits.arrow(column)}") for column in table.columns)
    lines.append(_line("", *heads))
    for group, rows in digits.groups(table):
        lines.append(r"\midrule")
        if group:
            lines.append(rf"\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\textit{{{escape(group)}}}}} \\")
        for row in rows:
            lines += _rows(row, table)
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _rows(row: Row, table: Table) -> list[str]:
    """A line of values and, for an arm, a line of differences below it."""
    cells = [digits.lines(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
    lines = [_line(escape(digits.label(row)), *(escape(value) for value, *_ in cells))]
    differences = [escape(" ".join(difference)) for _, *difference in cells]
    if any(differences):
        lines.append(_line("", *(rf"{{\footnotesize {text}}}" if text else "" for text in differences)))
    return lines


def _line(*cells: str) -> str:
    return " & ".join(cells) + r" \\"


def escape(text: str) -> str:
    """Text in which nothing is markup."""
    return "".join(_ESCAPES.get(character, character) for character in text)
