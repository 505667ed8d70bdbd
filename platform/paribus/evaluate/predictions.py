"""The predictions of a fine-tuning, an item a row, so that tables can be scored again and systems be paired by item.

    predictions.parquet: split, id, group, option (of pairs that are answer options), gold and predicted as JSON, scores

`scores` are logits of labels or options, the number itself of a regression, of a span question the answer's score and
the null score; none of tags.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.data.formats import Item

FILE = "predictions.parquet"


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer, and what it was weighed by."""

    answer: Any
    scores: list[float]


def write(path: Path, splits: Mapping[str, tuple[Sequence[Item], Sequence[Prediction]]]) -> None:
    """Write the items and predictions of each split."""
    import pyarrow as pa  # not with the module: training would load it in every worker
    from pyarrow import parquet

    rows = [
        {
            "split": split,
            "id": item.id,
            "group": getattr(item, "group", ""),
            "option": getattr(item, "option", ""),
            "gold": json.dumps(item.gold, ensure_ascii=False),
            "predicted": json.dumps(prediction.answer, ensure_ascii=False),
            "scores": prediction.scores,
        }
        for split, (items, predicted) in splits.items()
        for item, prediction in zip(items, predicted, strict=True)
    ]
    texts = [pa.field(name, pa.string()) for name in ("split", "id", "group", "option", "gold", "predicted")]
    parquet.write_table(pa.Table.from_pylist(rows, pa.schema([*texts, ("scores", pa.list_(pa.float64()))])), path)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The rows that `write` wrote, gold and predicted as they were."""
    from pyarrow import parquet

    for row in parquet.read_table(path).to_pylist():
        yield {**row, "gold": json.loads(row["gold"]), "predicted": json.loads(row["predicted"])}
