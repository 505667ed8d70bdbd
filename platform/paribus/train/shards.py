"""Ranks that keep a share of the model each: parameters, gradients and optimizer state, by torch's fully_shard.

All ranks run as many micro-batches, since each gathers a block's parameters from all of them before it is computed.
Checkpoints and files are whole, as those of one device: whenever the first rank wants them, the others help.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._pytree import tree_map_only

from paribus.errors import ParibusError
from paribus.train.module import Trained
from paribus.train.ranks import Ranks

T = TypeVar("T")
GO_ON = "go on"


@contextmanager
def sharded(
    module: Trained, blocks: Iterable[nn.Module], forward: str, files: Callable[[], object], where: torch.device
) -> Iterator[None]:
    """Train `module` in shards, each block a unit and the rest another, among ranks that have met.

    `forward` names the method that computes a micro-batch's losses; `files` and the state of the training are what the
    first rank may want whole.
    """
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ParibusError(f"--strategy fsdp: needs a newer torch, found {torch.__version__}")
    mesh = init_device_mesh(where.type, (module.ranks.world,))
    for part in (*blocks, module):
        unit = fully_shard(part, mesh=mesh)
        unit.set_force_sum_reduction_for_comms(True)
        unit.set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(module, forward)

    def state() -> object:
        states = [optimizer.state_dict() for optimizer in module.trainer.optimizers]
        return {"state_dict": module.state_dict(), "optimizer_states": states}

    module.ranks = Shards(module.ranks.rank, module.ranks.world, mesh=mesh, sources={"state": state, "files": files})
    move = module.cpu

    def cpu() -> Trained:
        with suppress(Exception):
            move()
        return module

    # Lightning moves what it trained to the CPU. After an error in the middle of a step that fails, and would hide it.
    module.cpu = cpu  # type: ignore[method-assign]
    yield
    module.ranks.attend()


class Padded(Protocol):
    """A step that can be given micro-batches that add nothing."""

    micros: Sequence[Any]

    def padded(self, count: int) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Shards(Ranks):
    """Ranks of a module that is in shards."""

    mesh: DeviceMesh
    sources: Mapping[str, Callable[[], object]]
    """What can be made whole, by name: the same on all ranks, in the same order."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Gradients are left out: the backward pass has added them up."""
        super().add_up([tensor for tensor in tensors if not isinstance(tensor, DTensor)])

    def repeats(self, ran_out: bool) -> bool:
        """Never: the others are in the middle of the step and wait for this one's shards."""
        if ran_out:
            raise ParibusError("out of memory; with --strategy fsdp, expected a smaller --micro-batch-rows")
        return False

    def clip(self, parameters: Iterable[Tensor], most: float) -> Tensor:
        moved = [parameter for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in moved if p.grad is not None])
        assert isinstance(norm, DTensor)
        whole = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(moved, most, whole)
        return whole

    def attend(self) -> None:
        while (what := self._tell(GO_ON)) != GO_ON:
            self._gather(self.sources[what]())

    def whole(self, what: str, tree: T) -> T:
        self._tell(what)
        return self._gather(tree)

    def cut_up(self, checkpoint: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
        def cut(tensor: Tensor) -> Tensor:
            return distribute_tensor(tensor.to(self.mesh.device_type), self.mesh, [Shard(0)])

        found = checkpoint["state_dict"]
        checkpoint["state_dict"] = {
            name: cut(found[name]) if isinstance(like, DTensor) else found[name] for name, like in weights.items()
        }
        moments = tree_map_only(Tensor, lambda t: cut(t) if t.ndim else t, checkpoint["optimizer_states"])
        checkpoint["optimizer_states"] = moments

    def level(self, step: Padded) -> Any:
        return step.padded(self.most(len(step.micros)))

    def _tell(self, what: str) -> str:
        """What the first rank says."""
        words = [GO_ON, *self.sources]
        told = torch.tensor(words.index(what))
        dist.broadcast(told, 0)
        return words[int(told)]

    def _gather(self, tree: T) -> T:
        """`tree` with whole tensors, in main memory; on the first rank."""

        def gather(tensor: DTensor) -> Tensor | None:
            there: Any = tensor.to(self.mesh.device_type)  # Lightning leaves a trained module on the CPU
            whole: Tensor = there.full_tensor()
            return whole.cpu() if self.rank == 0 else None

        gathered: T = tree_map_only(DTensor, gather, tree)
        return gathered
