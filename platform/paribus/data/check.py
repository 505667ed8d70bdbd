"""What a task's files hold: counts beside the official ones, labels, and what is odd about which row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from paribus.data.formats import Item, MinimalPairItem, PairItem, Reading, read
from paribus.errors import DataError, ParibusError
from paribus.project import Project, Source, locate
from paribus.spec.load import suggest
from paribus.spec.task import Folder, Task

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Checked:
    """One file of a task."""

    split: str
    file: str
    """Where it is, or why it cannot be used."""
    usable: bool
    there: bool
    items: int = 0
    groups: int = 0
    """Questions, where several items are the answers to one."""
    official: int | None = None
    labels: dict[str, int] = field(default_factory=dict)
    """How many items (of sequences: words) have each label, in the task's order."""
    notes: list[str] = field(default_factory=list)
    """What holds of the file as a whole."""
    defects: list[str] = field(default_factory=list)
    """What is odd about single rows, by place."""

    @property
    def complete(self) -> bool:
        """Whether it has as many items as the distribution (nothing official: any number)."""
        return self.official in (None, self.groups or self.items)


def sources(task: Task, data: Path) -> dict[str, Source | DataError]:
    """The file of each split that the task names, below the data folder, or why there is none."""
    found: dict[str, Source | DataError] = {}
    if isinstance(task.data, Folder):
        for split in SPLITS:
            name = getattr(task.data, split)
            if name is not None:
                try:
                    found[split] = locate(data / task.data.path, name)
                except DataError as error:
                    found[split] = error
    return found


def inventory(project: Project) -> list[dict[str, Any]]:
    """Of each task, which of its files are there, and what to do for the missing."""
    rows = []
    for name in project.tasks:
        task = project.task(name)
        found = sources(task, project.data)
        missing = [split for split, source in found.items() if isinstance(source, DataError)]
        there = ", ".join(split for split in found if split not in missing)
        files = ", ".join(f"{split}: {getattr(task.data, split)}" for split in missing)
        rows.append(
            {
                "task": name,
                "kind": task.kind,
                "there": there if found else f"({task.data.kind})",
                "missing": f"{files}; into {project.data / getattr(task.data, 'path', '')}" if missing else "",
                "from": getattr(task.data, "obtain", "") if missing else "",
            }
        )
    return rows


def checkable(project: Project, what: str) -> list[tuple[Task, Path]]:
    """The tasks that `what` (a task, or a folder) means, each with the data folder it is to be read from."""
    if what in project.tasks.paths:
        task = project.task(what)
        if not isinstance(task.data, Folder):
            kind = task.data.kind
            raise ParibusError(f"data check {what}: there are no files to check, its data are of kind {kind!r}")
        return [(task, project.data)]
    folder = Path(what).resolve()
    if not folder.is_dir():
        hint = suggest(what, project.tasks) or "; `paribus data list` shows the tasks"
        raise ParibusError(f"data check {what}: neither a task nor a folder is called so{hint}")
    found = []
    for name in project.tasks:
        task = project.task(name)
        if not isinstance(task.data, Folder):
            continue
        parts = Path(task.data.path).parts
        # The folder is the data folder itself, or lies on the way from there to the task's own.
        roots = [folder] + [
            folder.parents[depth - 1] for depth in range(1, len(parts) + 1) if folder.parts[-depth:] == parts[:depth]
        ]
        for root in roots:
            if any(isinstance(source, Source) for source in sources(task, root).values()):
                found.append((task, root))
                break
    if not found:
        raise ParibusError(f"data check {what}: the files of no task are there; `paribus data list` says where they go")
    return found


def check(task: Task, data: Path) -> list[Checked]:
    """Read every file of a task of kind folder; nothing is raised for a bad one, it is said."""
    assert isinstance(task.data, Folder)
    checked: list[Checked] = []
    train: Sequence[Item] = ()
    for split, source in sources(task, data).items():
        official = task.data.official.get(split)  # type: ignore[call-overload]
        if isinstance(source, DataError):
            checked.append(Checked(split, str(source), False, False, official=official))
            continue
        try:
            reading = read(task, source, test=split == "test")
        except DataError as error:
            checked.append(Checked(split, str(error), False, True, official=official))
            continue
        items = reading.items
        checked.append(
            Checked(
                split,
                str(source),
                usable=True,
                there=True,
                items=len(items),
                groups=len({item.group for item in items if isinstance(item, PairItem) and item.group}),
                official=official,
                labels=_labels(task, items),
                notes=[*_notes(reading), *_shared(items, train, split)],
                defects=[f"{defect}{'; left out' if defect.left_out else ''}" for defect in reading.defects],
            )
        )
        train = items if split == "train" else train
    return checked


def _labels(task: Task, items: Sequence[Item]) -> dict[str, int]:
    """How often each label occurs; empty for kinds without."""
    match items[0].kind:
        case "sentence" | "pair" | "multiple-choice":
            found = Counter(str(item.gold) for item in items if item.gold is not None)
        case "tagging":
            found = Counter(chain.from_iterable(item.gold for item in items))  # type: ignore[misc]
        case "span-qa":
            found = Counter("answerable" if item.gold else "unanswerable" for item in items)
        case _:
            return {}
    order = [label for label in getattr(task, "labels", ()) if label in found]
    return {label: found[label] for label in order or sorted(found)}


def _notes(reading: Reading) -> list[str]:
    items = reading.items
    notes = []
    if unlabelled := sum(item.gold is None for item in items):
        notes.append(f"{unlabelled} items have no label; nothing is scored on them")
    ids = Counter(item.id for item in items)
    if repeated := [id_ for id_, count in ids.items() if count > 1]:
        often = f"{repeated[0]!r} ({ids[repeated[0]]} times)"
        notes.append(f"{len(repeated)} ids occur more than once, the first is {often}")
    if again := len(items) - len({item.content for item in items}):
        notes.append(f"{again} items repeat the text of another")
    if isinstance(items[0], MinimalPairItem):
        pairs = [item for item in items if isinstance(item, MinimalPairItem)]
        paradigms, phenomena = {pair.paradigm for pair in pairs}, {pair.phenomenon for pair in pairs}
        notes.append(f"{len(paradigms)} paradigms of {len(phenomena)} phenomena")
    return notes


def _shared(items: Sequence[Item], train: Sequence[Item], split: str) -> list[str]:
    """What of the text is also in train: WNLI's dev set repeats train's premises under the other label."""
    notes = []
    known = {item.content for item in train}
    if both := sum(item.content in known for item in items if split != "train"):
        notes.append(f"{both} items have a text that is also in train")
    labels: dict[str, set[str | None]] = {}
    for item in train:
        if isinstance(item, PairItem):
            labels.setdefault(item.sentence1, set()).add(item.label)
    pairs = [item for item in items if isinstance(item, PairItem) and item.sentence1 in labels and split != "train"]
    if pairs:
        other = sum(pair.label not in labels[pair.sentence1] for pair in pairs if pair.label is not None)
        notes.append(f"{len(pairs)} first sentences are also in train, {other} of them only under another label")
    return notes
