"""Sets of the Hugging Face Hub, through `datasets`."""

from collections.abc import Iterator

from paribus.data.formats.items import Row
from paribus.data.formats.rows import flat, items
from paribus.errors import DataError
from paribus.spec.task import Hub, Task


def read_hub(hub: Hub, task: Task, split: str) -> Iterator[Row]:
    """The rows of a split by the set's own name for it; labels that it numbers are called by their names."""
    import datasets

    try:
        table = datasets.load_dataset(hub.name, hub.config, split=split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).strip().partition("\n")[0]
        raise DataError(f"task {task.name}: {hub.name} cannot be had from the Hub: {why}") from None
    columns = [str(column) for _, column in flat(hub.columns)]
    if missing := [column for column in columns if column not in table.column_names]:
        found = ", ".join(table.column_names)
        raise DataError(f"task {task.name}: {hub.name} has no column {missing[0]!r}; found {found}")
    names = {column: table.features[column].names for column in columns if hasattr(table.features[column], "names")}
    # -1 is the Hub's number for no label, and no name.
    rows = (
        {
            column: names[column][row[column]] if column in names and row[column] != -1 else row[column]
            for column in columns
        }
        for row in table
    )
    return items(task, hub.columns, ((f"row {number}", row) for number, row in enumerate(rows)), test=False)
