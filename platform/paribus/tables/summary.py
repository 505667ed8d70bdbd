"""What a table says of an arm as flat names, for programs that know no tables: MLflow's search and charts."""

from statistics import fmean, median

from paribus.tables.table import Table


def summary(table: Table, arm: str) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of an arm, by name.

    table/COLUMN/mean, median, n; where there is a difference to the baseline also difference, low and high. Units are
    the table's. Tag paribus.verdict.COLUMN: its verdict there.
    """
    metrics: dict[str, float] = {}
    tags: dict[str, str] = {}
    # An experiment without finished runs has the paper's table alone.
    cells = next((row.cells for row in table.rows if row.arm and row.key == arm), [None] * len(table.columns))
    for column, cell in zip(table.columns, cells, strict=True):
        if cell is None or not cell.samples:
            continue
        values = [sample.value for sample in cell.samples]
        metrics |= {
            f"table/{column.key}/mean": fmean(values),
            f"table/{column.key}/median": median(values),
            f"table/{column.key}/n": float(len(values)),
        }
        if (found := cell.difference) is not None:
            ends = {"difference": found.mean, "low": found.low, "high": found.high}
            metrics |= {f"table/{column.key}/{name}": end for name, end in ends.items() if end is not None}
        if cell.verdict is not None:
            tags[f"paribus.verdict.{column.key}"] = cell.verdict.kind
    return metrics, tags
