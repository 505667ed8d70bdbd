"""BLiMP: minimal pairs, a file a paradigm."""

from collections.abc import Iterator

from paribus.data.formats.files import members
from paribus.data.formats.items import Defect, MinimalPairItem, Row
from paribus.data.formats.rows import parsed
from paribus.project import Source
from paribus.spec.task import Blimp, Task

# The paper counts 12 phenomena, its files say 13: the two paradigms of selection are in the table's argument structure.
PHENOMENA = {"s-selection": "argument_structure"}
KEYS = ("sentence_good", "sentence_bad", "UID", "linguistics_term", "pairID")


def read_blimp(format: Blimp, task: Task, source: Source, test: bool) -> Iterator[Row]:
    """The pairs of all files, in order of file name."""
    for name, text in sorted(members(source, ".jsonl")):
        for number, line in enumerate(text.splitlines(), 1):
            place = f"{name} line {number}".strip()
            found = parsed(line)
            if isinstance(found, str) or (missing := [key for key in KEYS if not isinstance(found.get(key), str)]):
                yield Defect(place, found if isinstance(found, str) else f"no text {missing[0]!r}")
                continue
            good, bad, paradigm, phenomenon, pair = (found[key] for key in KEYS)
            yield MinimalPairItem(f"{paradigm}-{pair}", good, bad, paradigm, PHENOMENA.get(phenomenon, phenomenon))
            if good == bad:
                yield Defect(place, f"both sentences are {good!r}", left_out=False)
