"""From packed rows to optimizer steps: an iterable that starts at any step."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from paribus.data.batching import Batches
from paribus.data.masking import asked, duplicates, mask, mask_visits, sampling_draws
from paribus.data.packing import CONTINUES, ISOLATED, Rows, documents_of
from paribus.data.vocabulary import PAD
from paribus.objectives.batch import Micro, Step
from paribus.objectives.draw import drawable
from paribus.plan.stages import Pretraining
from paribus.seeds import bits, seed_for
from paribus.spec.objective import Mlm, Objective, Rtd
from paribus.train.ranks import ALONE, Ranks
from paribus.train.tensors import ahead


class Steps:
    """The steps of a pretraining from `first` on: masks drawn, rows cut into micro-batches of at most `micro_rows`.

    Of several ranks each takes every `world`-th row of a step. They are made ahead, in a thread or with `workers` by as
    many processes; a step is a function of its number, so it is the same.

    With `fixed` micro-batches of one shape come again and again, for what is compiled for shapes: see Micro.fixed.
    Those of a step are about as large as each other, and rows that are not all full are filled up in a few lengths and
    numbers. Masks that a device can draw are left to it.
    With `pinned` they are where a GPU can read them while this process goes on.
    """

    def __init__(
        self,
        rows: Rows,
        spec: Pretraining,
        vocabulary: int,
        seed: int,
        micro_rows: int | None,
        ranks: Ranks = ALONE,
        fixed: bool = False,
        pinned: bool = False,
    ) -> None:
        self._rows, self._spec, self._objective = rows, spec, spec.objective
        self._vocabulary, self._seed, self._micro_rows, self._ranks = vocabulary, seed, micro_rows, ranks
        self._batches = Batches(rows.lengths, spec.budget.batch_tokens, seed)
        self.epochs = spec.budget.steps * spec.budget.batch_tokens / self._batches.epoch_tokens
        self.duplicates = duplicates(self._objective.masking, self.epochs)
        self.fixed, self._pinned = fixed, pinned
        self._drawn_there = fixed and drawable(spec.objective)
        self._padded = fixed and bool((rows.lengths < rows.tokens.shape[1]).any())
        self._segmented = fixed and bool(rows.second.any())
        self.first = 0
        self.workers = 0

    def __iter__(self) -> Iterator[Step]:
        numbers: Any = range(self.first, self._spec.budget.steps)
        if self.workers == 0:
            return ahead(numbers, self.step, self._pinned)
        loader: DataLoader[Step] = DataLoader(
            self,  # type: ignore[arg-type]
            batch_size=None,
            sampler=numbers,
            num_workers=self.workers,
            generator=torch.Generator(),  # none of the global stream's draws
            multiprocessing_context="fork",
            pin_memory=self._pinned,
        )
        return iter(loader)

    def __getitem__(self, number: int) -> Step:
        return self.step(number)

    def step(self, number: int) -> Step:
        """Optimizer step `number` (from 0)."""
        rows, visits = self._batches.rows(number)
        tokens = self._rows.tokens[rows]
        inputs: NDArray[np.integer]
        due = mask_visits(visits, self.duplicates)
        if self._drawn_there:
            inputs, chosen = tokens, np.zeros(tokens.shape, dtype=bool)
            count = asked(tokens, self._objective.rate, self._objective.mask_specials)
            streams = bits(seed_for(self._seed, "mask"), rows, due).view(np.int64)
            sampling = bits(seed_for(self._seed, "sample"), rows, visits).view(np.int64)
            predicted = int(count.sum())
        else:
            masked = mask(
                tokens,
                rows,
                due,
                self._seed,
                self._objective.rate,
                self._objective.replacement,
                self._vocabulary,
                self._objective.unit,
                self._rows.flags[rows] & CONTINUES > 0,
                self._objective.mask_specials,
            )
            inputs, chosen = masked.inputs, masked.chosen
            predicted = int(chosen.sum())
        rank, world = self._ranks.rank, self._ranks.world
        size = (self._micro_rows or len(rows)) * world
        if self.fixed:
            pieces = -(-len(rows) // size)
            size = _up(-(-len(rows) // pieces), world)
        micros = []
        for start in range(rank, len(rows), size):
            part = slice(start, start + size, world)
            micro = make_micro(
                self._rows,
                rows[part],
                tokens[part],
                inputs[part],
                chosen[part],
                self._objective,
                visits[part],
                self._seed,
            )
            if self._drawn_there:
                micro = replace(
                    micro,
                    stream_B=torch.from_numpy(streams[part]),
                    count_B=torch.from_numpy(count[part]),
                    sampling_B=None if micro.draws_M is None else torch.from_numpy(sampling[part]),
                    draws_M=None,
                )
            micros.append(self._shaped(micro) if self.fixed else micro.unpadded(micro.padding_BT))
        real = int(self._rows.lengths[rows].sum())
        if self.fixed:
            counts = torch.tensor([max(1, predicted), len(rows), real], dtype=torch.float32)
            return Step(tuple(micros), counts[0], counts[1], counts[2])
        return Step(tuple(micros), max(1, predicted), len(rows), real)

    def _shaped(self, micro: Micro) -> Micro:
        """A micro-batch in one of a few shapes: four lengths, and eight numbers of rows between two powers of two."""
        (rows, width), longest = micro.tokens_BT.shape, self._rows.tokens.shape[1]
        if self._padded:
            rows = _up(rows, 2 ** max(0, rows.bit_length() - 4))
            rows = min(rows, self._micro_rows or rows)
            width = next(short for part in (8, 4, 2, 1) if width <= (short := _up(longest, part) // part))
        slots = max(1, int(self._objective.rate * width + 0.5))
        # Units from left to right may exceed what is asked of a row.
        most = int(torch.bincount(micro.places_M // micro.tokens_BT.shape[1], minlength=1).max())
        slots = slots if most <= slots else min(width, _up(most, 8))
        return micro.fixed(rows, width, slots, self._padded, self._segmented)


def _up(number: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-number // step) * step


def make_micro(
    rows: Rows,
    numbers: Any,
    tokens: Any,
    inputs: Any,
    chosen: Any,
    objective: Objective | None = None,
    visits: Any = 0,
    seed: int = 0,
) -> Micro:
    """Rows as tensors, cut to the longest of them (in eights: shapes recur).

    `objective` decides on labels and draws; `visits` and `seed` decide the draws.
    """
    lengths = rows.lengths[numbers]
    longest = min(tokens.shape[1], -(-int(lengths.max()) // 8) * 8)
    inputs, chosen, tokens = inputs[:, :longest], chosen[:, :longest], tokens[:, :longest]
    # Of the tokens, not of the inputs: a random token may be [PAD], too.
    padding = torch.from_numpy(tokens == PAD) if (tokens == PAD).any() else None
    second = rows.second[numbers]
    segments = None
    if second.any():
        places = np.arange(longest)[None, :]
        segments = (second > 0)[:, None] & (places >= second[:, None]) & (places < lengths[:, None])
    labels = rows.labels[numbers] if isinstance(objective, Mlm) and objective.sentence != "none" else None
    flags, blocked = rows.flags[numbers][:, :longest], None
    if (flags & ISOLATED).any():
        documents = documents_of(flags, lengths)
        blocked = torch.from_numpy(documents[:, :, None] != documents[:, None, :])
    draws = None
    if isinstance(objective, Rtd):
        draws = sampling_draws(numbers, np.broadcast_to(visits, numbers.shape), longest, seed)[chosen]
    return Micro(
        torch.from_numpy(inputs.astype(np.int64)),
        padding,
        None if segments is None else torch.from_numpy(segments.astype(np.int64)),
        torch.from_numpy(np.flatnonzero(chosen)),
        torch.from_numpy(tokens[chosen].astype(np.int64)),
        None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        None if draws is None else torch.from_numpy(draws),
        blocked,
    )
