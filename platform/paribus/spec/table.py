"""PaperTable: a table as its paper prints it."""

from typing import Literal

from pydantic import Field, model_validator

from paribus.spec.base import Spec

Value = int | float | str | list[int | float | str] | None

Kind = Literal["ablation", "result", "hyperparameters", "analysis"]


class Paper(Spec):
    """The paper a table was taken from."""

    key: str
    title: str
    authors: str
    year: int | None
    arxiv: str | None
    table: int | str | None
    """A number, 'figure N', 'section N', or null for prose."""


class Column(Spec):
    """A column: a score of a task on a split, or a description of the row."""

    key: str
    task: str | None
    metric: str
    split: Literal["train", "dev", "test"] | None
    label: str
    higher_is_better: bool | None


class Row(Spec):
    """A row: a system or an arm."""

    key: str
    label: str
    group: str
    values: dict[str, Value]


class PaperTable(Spec):
    """A table as its paper prints it. Scores are percentages, correlations and Matthews x 100; missing cells are null."""

    id: str
    title: str
    paper: Paper
    kind: Kind
    factor: str | None
    protocol: str
    """How the paper ran it: data, size, seeds, split."""
    columns: tuple[Column, ...] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)
    notes: str

    @model_validator(mode="after")
    def _cells_match_columns(self) -> "PaperTable":
        keys = [column.key for column in self.columns]
        for row in self.rows:
            if list(row.values) != keys:
                raise ValueError(f"row {row.key}: values must name every column in order, found {list(row.values)}")
        return self
