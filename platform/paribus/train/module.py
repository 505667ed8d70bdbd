"""One optimizer step, the same for every LightningModule here."""

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from paribus.seeds import seed_for
from paribus.spec.optim import Optimizer, Schedule
from paribus.train.optim import make_optimizer, make_schedule


class Trained(pl.LightningModule):
    """A module whose training step calls `update` with losses that are already divided by the whole step's counts.

    `last` holds what callbacks read: tensors on the device, so nobody waits for it before it is asked for.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, steps: int, seed: int, purpose: str) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.last: dict[str, Tensor] = {}
        self._optimizer, self._schedule, self._steps = optimizer, schedule, steps
        self._seed, self._purpose = seed, purpose

    def update(self, *turns: Iterator[tuple[Tensor, dict[str, Tensor]]]) -> None:
        """For each turn add up the gradients of its losses (a loss and its named parts a micro-batch), clip, step.

        Iterators, so that each forward pass is run, and draws its dropout, in here. A turn moves only parameters that
        its losses give a gradient, and AdamW keeps its state a parameter, so turns over different parameters are
        optimizers of their own.
        """
        # Dropout draws from a stream of its own each step, so a resumed run draws what an undisturbed one would.
        torch.manual_seed(seed_for(self._seed, self._purpose, "dropout", self.global_step))
        optimizer: Any = self.optimizers()
        clip = getattr(self._optimizer, "clip", 0.0) or float("inf")
        parts: dict[str, Tensor] = {}
        norms = []
        for turn in turns:
            optimizer.zero_grad()
            for loss, named in turn:
                self.manual_backward(loss)
                for name, part in named.items():
                    parts[name] = parts[name] + part.detach() if name in parts else part.detach()
            norms.append(torch.nn.utils.clip_grad_norm_(self.parameters(), clip).detach())
            # Lightning counts steps by its wrapper: the last turn's stands for the whole update.
            (optimizer if turn is turns[-1] else optimizer.optimizer).step()
        rate = torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)
        self.last = {**parts, "grad_norm": torch.stack(norms).norm(), "lr": rate}
        self.lr_schedulers().step()  # type: ignore[union-attr]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Batches that know how move themselves; lists of features become tensors on the device in `forward`."""
        return batch.to(device) if hasattr(batch, "to") else batch

    def share_of_rate(self, name: str) -> float:
        """The share of the learning rate that the parameter of a name takes."""
        return 1.0

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self._optimizer, self, self.share_of_rate)
        schedule = make_schedule(self._schedule, optimizer, self._steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
