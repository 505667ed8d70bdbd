"""One optimizer step, the same for every LightningModule here."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from paribus.seeds import seed_for
from paribus.spec.optim import Optimizer, Schedule
from paribus.train.lightning import pl
from paribus.train.memory import free, too_small
from paribus.train.optim import make_optimizer, make_schedule
from paribus.train.passes import Passes
from paribus.train.ranks import ALONE, Ranks

Losses = Iterator[dict[str, Tensor]]
"""The named parts of each micro-batch's loss, whose gradients are added up."""


class Trained(pl.LightningModule):
    """A module whose training step calls `update` with losses that are already divided by the whole step's counts.

    `last` holds what callbacks read: tensors on the device, so nobody waits for it before it is asked for.
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Schedule, steps: int, seed: int, purpose: str, compiles: bool = True
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.last: dict[str, Tensor] = {}
        self.ranks: Ranks = ALONE
        self.passes = Passes(self, compiles)
        self.micro_rows: int | None = None
        """Rows through the network at once; None takes each batch as it comes. Halved when memory runs out."""
        self.out_of_memory = 0
        """How often it was."""
        self._optimizer, self._schedule, self._steps = optimizer, schedule, steps
        self._seed, self._purpose = seed, purpose

    def update(self, batch: Any, *turns: Callable[[Any], Losses]) -> None:
        """For each turn add up the gradients of its losses of a batch, clip, step. Where memory runs out the turn
        begins again with half as many rows at once.

        Iterators, so that the passes of each micro-batch are run, and draw their dropout, in here. A turn moves only
        parameters that its losses give a gradient, and AdamW keeps its state a parameter, so turns over different
        parameters are optimizers of their own.
        """
        self._draw_dropout_from()
        optimizer: Any = self.optimizers()
        clip = getattr(self._optimizer, "clip", 0.0) or float("inf")
        parts: dict[str, Tensor] = {}
        parameters, norms = self.passes.parameters, []
        for number, turn in enumerate(turns):
            found: dict[str, Tensor] = {}
            self._zero(optimizer, number)
            while self.ranks.repeats(self._runs_out(turn(batch), found)):
                self._zero(optimizer, number)
                found.clear()
                batch = self._smaller(batch)
                self._draw_dropout_from(*([number] if number else []))
            self.ranks.add_up([*(p.grad for p in parameters if p.grad is not None), *found.values()])
            for name, part in found.items():
                parts[name] = parts[name] + part if name in parts else part
            norms.append(self.ranks.clip(parameters, clip))
            # Lightning counts steps by its wrapper: the last turn's stands for the whole update.
            (optimizer if turn is turns[-1] else optimizer.optimizer).step()
        rate = torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)
        self.last = {**parts, "grad_norm": torch.stack(norms).norm(), "lr": rate}
        self.lr_schedulers().step()  # type: ignore[union-attr]

    def _zero(self, optimizer: Any, turn: int) -> None:
        if self.passes.keeps_gradients:
            self.passes.zero_gradients(turn)
        else:
            optimizer.zero_grad()

    def _draw_dropout_from(self, *turn: int) -> None:
        """Dropout draws from a stream of its own each step, so a resumed run draws what an undisturbed one would."""
        rank = ["rank", self.ranks.rank] if self.ranks.rank else []
        seed = seed_for(self._seed, self._purpose, "dropout", self.global_step, *turn, *rank)
        # torch.manual_seed asks every kind of device there could be, which takes as long as a small step's launching.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index].manual_seed(seed)

    def _runs_out(self, losses: Losses, found: dict[str, Tensor]) -> bool:
        """Add up the gradients, and in `found` the named parts; whether memory ran out meanwhile."""
        try:
            for named in losses:
                for name, part in named.items():
                    found[name] = found[name] + part if name in found else part
        except torch.OutOfMemoryError:
            return True
        return False

    def _smaller(self, batch: Any) -> Any:
        """The batch with half as many rows at once, as all batches after it."""
        self.out_of_memory += 1
        most = self.most_rows(batch)
        self.micro_rows = max(1, most // 2)
        smaller = self.cut(batch, self.micro_rows)
        if self.most_rows(smaller) == most:
            raise too_small()
        self.passes.forget()
        free()
        print(f"out of memory with {most} rows at once: {self.micro_rows} from here on", file=sys.stderr)
        return smaller

    def cut(self, batch: Any, rows: int) -> Any:
        """A batch in micro-batches of at most `rows` rows."""
        raise NotImplementedError

    def most_rows(self, batch: Any) -> int:
        """The rows of a batch's largest micro-batch."""
        raise NotImplementedError

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["memory"] = {"micro_rows": self.micro_rows, "out_of_memory": self.out_of_memory}
        checkpoint |= self.ranks.whole("state", {name: checkpoint[name] for name in ("state_dict", "optimizer_states")})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with what fitted: dropout then falls where it would have without the interruption."""
        self.ranks.cut_up(checkpoint, self.state_dict())
        found = checkpoint["memory"]
        if found["out_of_memory"]:
            self.out_of_memory = found["out_of_memory"]
            self.micro_rows = min(self.micro_rows or found["micro_rows"], found["micro_rows"])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.ranks.attend()

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch on the device, cut before it is there: to cut it later is to wait for the device."""
        return (self.cut(batch, self.micro_rows) if self.micro_rows else batch).to(device)

    def share_of_rate(self, name: str) -> float:
        """The share of the learning rate that the parameter of a name takes."""
        return 1.0

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self._optimizer, self, self.share_of_rate)
        schedule = make_schedule(self._schedule, optimizer, self._steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
