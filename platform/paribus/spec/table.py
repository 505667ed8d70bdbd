"""PaperTable: a table as its paper prints it. What must hold across files is in paribus.tables.papers."""

import math
import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StrictFloat, StrictInt, StrictStr, StringConstraints, model_validator

from paribus.spec.base import Spec
from paribus.spec.load import suggest

Scalar = StrictInt | StrictFloat | StrictStr
Value = Scalar | list[Scalar] | None

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$")]
Text = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]

# Metric to the range its numbers lie in. Scores are percentages, correlations and Matthews x 100; a score has a task.
SCORES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("acc", "f1", "em", "bleu", "rouge2", "avg"), (0, 100)),
    **dict.fromkeys(("mcc", "pearson", "spearman", "corr", "delta"), (-100, 100)),
    "ppl": (1, 1000),
}
QUANTITIES: dict[str, tuple[float, float]] = {
    "std": (0, 20),
    "pct": (0, 200),
    "ratio": (0, 1000),
    "count": (0, 1e9),
    "tokens_b": (0, 1e5),
    "params_m": (1, 1e6),
    "params_b": (0.01, 1e4),
    "flops": (1e16, 1e26),
    "gpu_days": (0, 1e6),
    "tpu_days": (0, 1e6),
    "energy_mwh": (0, 1e5),
    "co2e_t": (0, 1e5),
}
LOWER_IS_BETTER = {"ppl", "energy_mwh", "co2e_t"}


class Paper(Spec):
    """The paper a table was taken from."""

    key: Slug
    title: Text
    authors: Text
    year: int | None = Field(ge=1990, le=2030)
    """Of the first arXiv version."""
    arxiv: str | None = Field(pattern=r"^\d{4}\.\d{4,5}$")
    table: StrictInt | Annotated[str, StringConstraints(pattern=r"^(figure|section) [0-9A-Z.]+$")] | None
    """A number, 'figure N', 'section N', or null for prose."""

    @model_validator(mode="after")
    def _year_of_arxiv(self) -> "Paper":
        if self.arxiv and self.year != 2000 + int(self.arxiv[:2]):
            raise ValueError(f"year must be that of arXiv {self.arxiv}, found {self.year}")
        return self

    @property
    def place(self) -> str:
        """', Table 1 (arXiv 1907.11692)', as far as it is known: to be put after the paper's name."""
        table = f", Table {self.table}" if isinstance(self.table, int) else f", {self.table}" if self.table else ""
        return table + (f" (arXiv {self.arxiv})" if self.arxiv else "")


class Column(Spec):
    """A column: a score of a task on a split, a quantity, or a `setting` or `text` that describes the row."""

    key: Slug
    task: Slug | None
    metric: str
    split: Literal["train", "dev", "test"] | None
    label: Text
    higher_is_better: bool | None
    """Null where neither direction is better."""

    @model_validator(mode="after")
    def _goes_with_its_metric(self) -> "Column":
        known = [*SCORES, *QUANTITIES, "setting", "text"]
        if self.metric not in known:
            raise ValueError(f"metric must be one of {', '.join(known)}, found {self.metric!r}")
        is_score = self.metric in SCORES
        if is_score != (self.task is not None) or is_score != (self.split is not None):
            raise ValueError(
                f"a score needs a task and a split, other columns have neither; "
                f"found metric {self.metric}, task {self.task}, split {self.split}"
            )
        wanted = False if self.metric in LOWER_IS_BETTER else True if is_score else None
        if self.higher_is_better is not wanted:
            raise ValueError(f"higher_is_better of {self.metric} must be {wanted}, found {self.higher_is_better}")
        return self

    def refusal(self, value: Value, *, difference: bool, sweep: bool) -> str | None:
        """What is wrong with `value` in this column; `difference`: of two rows, `sweep`: a list is allowed."""
        if value is None:
            return None
        if isinstance(value, list):
            return None if sweep and value else "a list (of at least one value) is for hyperparameters"
        if isinstance(value, str):
            if self.metric not in ("setting", "text") or not value:
                return f"{value!r} should be a number"
            is_number = self.metric == "setting" and re.fullmatch(r"[-+0-9.eE]+", value)
            return f"{value!r} is a number in quotes" if is_number else None
        if self.metric == "text":
            return f"{value!r} should be text"
        if not math.isfinite(value):
            return f"{value!r} is not a number"
        low, high = {**SCORES, **QUANTITIES}.get(self.metric, (-math.inf, math.inf))
        if difference and self.metric in SCORES:
            low, high = -100, 100
        return None if low <= value <= high else f"{value} is outside {low}..{high} for {self.metric}"


DIFFERENCE = "difference"


class Row(Spec):
    """A row: a system or an arm. Rows of the group DIFFERENCE hold differences between other rows."""

    model_config = ConfigDict(allow_inf_nan=True)  # the table refuses them by the name of the cell

    key: Slug
    label: Text
    group: str
    values: dict[str, Value]


class PaperTable(Spec):
    """A table as its paper prints it. Missing cells are null."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    """The name of its file."""
    title: Text
    paper: Paper
    kind: Literal["ablation", "result", "hyperparameters", "analysis"]
    factor: Slug | None
    """What an ablation varies."""
    protocol: Text
    """How the paper ran it: data, size, seeds, split."""
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    notes: str
    lacking: dict[Slug, Text] = {}
    """Row to what it would take to have it as an arm, for rows that no experiment has: not the paper's, ours."""

    @property
    def systems(self) -> list[Row]:
        """The rows that an arm can stand beside: those that are no differences."""
        return [row for row in self.rows if row.group != DIFFERENCE]

    @model_validator(mode="after")
    def _lacking_are_rows(self) -> "PaperTable":
        rows = {row.key for row in self.rows}
        for key in self.lacking:
            if key not in rows:
                raise ValueError(f"lacking.{key}: no such row" + suggest(key, rows))
        return self

    @model_validator(mode="after")
    def _factor_goes_with_kind(self) -> "PaperTable":
        if self.kind == "ablation" and self.factor is None:
            raise ValueError("factor must be given for an ablation")
        if self.kind in ("result", "hyperparameters") and self.factor is not None:
            raise ValueError(f"factor is for ablations and analyses, found {self.factor!r} in a table of {self.kind}")
        return self

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "PaperTable":
        _distinct("column", [column.key for column in self.columns])
        _distinct("column label", [column.label for column in self.columns])
        for column in self.columns:
            if self.kind == "hyperparameters" and column.metric != "setting":
                raise ValueError(f"column {column.key}: hyperparameters use metric setting, found {column.metric}")
        return self

    @model_validator(mode="after")
    def _cells_match_columns(self) -> "PaperTable":
        _distinct("row", [row.key for row in self.rows])
        keys = [column.key for column in self.columns]
        for row in self.rows:
            if list(row.values) != keys:
                raise ValueError(f"row {row.key}: values must name every column in order, found {list(row.values)}")
            if all(value is None for value in row.values.values()):
                raise ValueError(f"row {row.key}: no value at all")
            for column in self.columns:
                refusal = column.refusal(
                    row.values[column.key],
                    difference=row.group == DIFFERENCE,
                    sweep=self.kind == "hyperparameters",
                )
                if refusal:
                    raise ValueError(f"row {row.key}, column {column.key}: {refusal}")
        for key in keys:
            if all(row.values[key] is None for row in self.rows):
                raise ValueError(f"column {key}: no value at all")
        return self


def _distinct(what: str, names: list[Any]) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{what} {', '.join(sorted(twice))}: given twice")
