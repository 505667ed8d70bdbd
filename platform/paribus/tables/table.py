"""One table object: what an experiment measured beside what its paper printed. Numbers are rounded in render only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paribus.spec.table import Value
from paribus.tables.stats import Difference
from paribus.tables.tuning import Tuned
from paribus.tables.verdict import Checked, Verdict

Unit = Literal["points", "nats", "perplexity", "bits", "as printed"]


@dataclass(frozen=True)
class Column:
    """What a column holds. `published`: the paper's own values, as it prints them; settings are as printed too."""

    key: str
    label: str
    unit: Unit
    higher_is_better: bool | None
    published: bool
    judged: bool = False
    """Whether the arms' differences on it get a verdict."""
    beside: str | None = None
    """Of a column of ours that the paper has too: the key of the paper's, whose values stand in its cells."""
    split: str | None = None
    """What it was scored on: train, dev or test."""


@dataclass(frozen=True)
class Sample:
    """What one run contributed to a cell."""

    seed: int
    run: str
    value: float


@dataclass(frozen=True)
class Cell:
    """A value: as printed by the paper, aggregated over `samples`, or measured once by `stage`.

    In a column of ours that the paper has too `published` is the paper's, and `value` None where there is none of ours.
    """

    value: Value
    samples: tuple[Sample, ...] = ()
    difference: Difference | None = None
    """To the baseline arm, paired by seed."""
    stage: str | None = None
    verdict: Verdict | None = None
    """On the difference, corrected for all that the table judges."""
    best: bool = False
    """Whether it is one of those of its column that may be the best: none is significantly better."""
    published: Value = None


@dataclass(frozen=True)
class Row:
    """A system of the paper, an arm, or a reference to read the others by. One cell a column, None where empty."""

    key: str
    label: str
    group: str
    cells: tuple[Cell | None, ...]
    arm: bool = False
    baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table, ready to be rendered."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    question: str | None = None
    expect: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for, and each run with its state and keys."""
    tuned: tuple[Tuned, ...] = ()
    """How each arm was tuned, where the experiment tunes something."""
    warnings: tuple[str, ...] = ()
    """What a reader must know before the first number."""
    claims: tuple[Checked, ...] = ()
    """What the experiment claims, and whether it is so."""
