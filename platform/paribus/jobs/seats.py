"""Who works on which card, so that what runs together fits and what must run alone does.

    cards/HOST/WORKER.json    where a worker of that machine sits, with which run, and the memory it may take
    cards/memory.json         the memory that runs took, by their shape and card

A run whose shape was never measured is alone on its card until its first steps have shown what it takes. What is asked
for while a card is full waits, and nothing behind it goes first, so a large run is not kept waiting by small ones.
"""

import json
import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from paribus.files import read_cache, write_atomically, write_cache
from paribus.jobs.cards import Slot
from paribus.jobs.runs import QueuedRun, exclusive_queue
from paribus.spec.base import canonical, digest
from paribus.spec.run import Runtime
from paribus.store.lease import exclusive, holder, is_live
from paribus.store.store import Store, writing

MARGIN = 0.1
"""Share of a card's memory that is left free: for fragments, and for what later stages take beyond the measured."""
CONTEXT_MB = 600
"""What a process takes of a card beside its tensors, for CUDA and its libraries: an allowance, not measured."""


@dataclass(frozen=True)
class Sitting:
    """A worker on its places (cards by UUID, or the name of a device). `run` is None while it waits for one."""

    places: list[str]
    run: str | None
    memory_mb: float
    alone: bool


class Seat:
    """The place of a process (default: this one). One run at a time sits on it."""

    def __init__(self, store: Store, slot: Slot, runtime: Runtime, process: psutil.Process | None = None) -> None:
        self._store, self._slot, self._runtime = store, slot, runtime
        process = process or psutil.Process()
        self._me = {"host": socket.gethostname(), "pid": process.pid, "started": process.create_time()}
        self._folder = store.root / "cards" / socket.gethostname()
        with writing(store.root):
            self._folder.mkdir(parents=True, exist_ok=True)
        self._mine = self._folder / f"{process.pid}.json"
        self._memory = store.root / "cards" / "memory.json"
        self._places = [card.uuid for card in slot.cards] or [runtime.device]
        self._shape = ""
        self._must_be_alone = False
        self._warm = False  # whether this process has something on the card that stays
        self.full = False
        """Whether the last run that was asked about did not fit."""

    def take(self, run: QueuedRun) -> bool:
        """Sit down with `run`, unless it does not fit beside those that sit here."""
        self._shape = shape(run, self._runtime, self._slot)
        self._must_be_alone = exclusive_queue(self._store, run.queue)
        with self._changing():
            others = list(self._others())
            working = [other for other in others if other.run is not None]
            known = read_cache(self._memory).get(self._shape)
            memory = (known or 0.0) if self._slot.packed else 0.0
            alone = self._must_be_alone or (self._slot.packed and known is None)
            beside = not alone and not any(other.alone for other in working) and self._has_room(memory, others)
            fits = beside or not working  # with a card of its own a run is tried, whatever it takes
            self.full = not fits
            if fits:
                self._sit(Sitting(self._places, run.key, memory, alone))
        return fits

    def look(self, peak_mb: float) -> int:
        """Told the memory (MiB) that tensors of this process took so far: how many other runs share its places."""
        with self._changing():
            sitting = holder(self._mine)
            self._warm = self._warm or peak_mb > 0
            if peak_mb and sitting:
                known = read_cache(self._memory)
                taken = max(known.get(self._shape, 0.0), math.ceil(peak_mb + CONTEXT_MB))
                if known.get(self._shape) != taken:
                    write_cache(self._memory, {**known, self._shape: taken})
                if self._slot.packed and (sitting["memory_mb"] != taken or sitting["alone"] != self._must_be_alone):
                    self._sit(Sitting(self._places, sitting["run"], taken, self._must_be_alone))
            return sum(other.run is not None for other in self._others())

    def leave(self) -> None:
        """Get up. A process that worked on a card keeps what it takes of it beside its tensors."""
        with self._changing():
            if self._slot.packed and self._warm:
                self._sit(Sitting(self._places, None, CONTEXT_MB, False))
            else:
                self._mine.unlink(missing_ok=True)

    def _changing(self) -> AbstractContextManager[None]:
        return exclusive(self._folder / ".lock")

    def _others(self) -> Iterator[Sitting]:
        """Who else sits here and is alive."""
        for path in _living(self._folder):
            if path != self._mine and (found := holder(path)) and set(found["places"]) & set(self._places):
                yield Sitting(**{name: found[name] for name in Sitting.__dataclass_fields__})

    def _has_room(self, memory_mb: float, others: Sequence[Sitting]) -> bool:
        return all(
            memory_mb + sum(other.memory_mb for other in others if card.uuid in other.places)
            <= (1 - MARGIN) * card.memory_mb
            for card in self._slot.cards
        )

    def _sit(self, sitting: Sitting) -> None:
        with writing(self._store.root):
            write_atomically(self._mine, json.dumps({**self._me, **asdict(sitting)}))


def _living(folder: Path) -> Iterator[Path]:
    """The files of the workers of this machine that are alive; those of dead ones are removed."""
    for path in folder.glob("[0-9]*.json"):
        if is_live(path, math.inf):
            yield path
        else:
            path.unlink(missing_ok=True)


def sweep(store: Store) -> None:
    """Remove the seats of the workers of this machine that are gone."""
    folder = store.root / "cards" / socket.gethostname()
    if folder.is_dir():
        with writing(store.root), exclusive(folder / ".lock"):
            list(_living(folder))


def shape(run: QueuedRun, runtime: Runtime, slot: Slot) -> str:
    """What decides the memory of a run: encoder, objective, vocabulary, length, precision, rows at once, the card."""
    spec = run.run
    sizes = spec.tokenizer.vocabulary_size, spec.packing.length, spec.precision, spec.budget.batch_tokens
    machine = runtime.micro_batch_rows, runtime.devices, runtime.strategy, runtime.compile, runtime.sdpa
    cards = [card.name for card in slot.cards]
    return digest("|".join(map(str, (canonical(spec.encoder), canonical(spec.objective), *sizes, *machine, cards))))
