"""Several processes that train one module together: each takes its share of a step's rows, gradients are added up.

Every loss is divided by the counts of the whole step, so the sum of the ranks' gradients is the gradient of the step,
as it is with micro-batches. One addition a turn and nothing else is exchanged: parameters begin equal (by seed or from
one checkpoint) and stay equal, since all ranks take the same step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

SILENCE = timedelta(minutes=10)
"""How long a rank waits for the others: what hangs must end, a checkpoint on a slow disk must not."""


@dataclass(frozen=True)
class Ranks:
    """This process is number `rank` of `world`. By default it is alone."""

    rank: int = 0
    world: int = 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Make each tensor the sum of all ranks' ones."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, whole in zip(tensors, torch.split(flat, sizes), strict=True):
            tensor.copy_(whole.view_as(tensor))

    def most(self, mine: int) -> int:
        """The largest of all ranks' numbers. Told between CPUs, so that no GPU is waited for."""
        if self.world == 1:
            return mine
        told = torch.tensor(mine)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return int(told)

    def repeats(self, ran_out: bool) -> bool:
        """Whether to repeat what ran out of memory, here or on another rank."""
        return bool(self.most(ran_out))

    def clip(self, parameters: Iterable[Tensor], most: float) -> Tensor:
        """Scale the gradients to a norm of at most `most` over all of them; the norm that they had."""
        return torch.nn.utils.clip_grad_norm_(parameters, most).detach()

    # What ranks that keep shards (train/shards.py) do besides.

    def attend(self) -> None:
        """Before each step, and after the last: help the first rank with what it wants whole."""

    def whole(self, what: str, tree: T) -> T:
        """`tree`, shards in it made whole, on the first rank; `what` it is tells the others to help."""
        return tree

    def cut_up(self, checkpoint: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Replace what is whole in a checkpoint by this rank's shards, where `weights`, the module's, are shards."""

    def level(self, step: Any) -> Any:
        """A step in as many micro-batches as on every other rank, where that matters."""
        return step


ALONE = Ranks()


@contextmanager
def joined(meeting: Path, rank: int, world: int, where: torch.device) -> Iterator[None]:
    """Meet the other ranks of this machine through the file `meeting`, made by the first of them."""
    backend = "cpu:gloo,cuda:nccl" if where.type == "cuda" else "gloo"
    if where.type == "cuda":
        torch.cuda.set_device(where)
    store = dist.FileStore(str(meeting), world)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=SILENCE)
    try:
        yield
    except BaseException:
        # Another rank may be gone, and what the GPU still waits for with it.
        with suppress(RuntimeError):
            dist.distributed_c10d._abort_process_group()
        raise
    dist.destroy_process_group()
