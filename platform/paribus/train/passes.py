"""How a micro-batch goes forward and backward: as written, compiled, or replayed as a CUDA graph.

What cannot be had is said once on standard error, and the next best is done: a run does not end for it, but for a
compiled backward pass that fails after others of it did not.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from paribus.nn.compiler import compiler, uncollected

How = Literal["off", "on", "graphs"]
Parts = tuple[Tensor, dict[str, Tensor]]
"""A loss and its named parts, or what else is wanted of a pass."""

BACKEND = "inductor"
ORDINARY = 2
"""Passes of a shape before its graph is captured: in the first gradients are made, in the second added to."""
SHAPES = 64
"""Kinds of micro-batches, of all runs of a process, that are compiled before it is given up; and those of one run that
are captured."""


class Passes:
    """What a module computes of a micro-batch, and its gradients: a loss forward and backward.

    What never `compiles` is replayed as it is written: for many shapes, which take longer to compile than to train.
    """

    def __init__(self, module: nn.Module, compiles: bool = True) -> None:
        self._module, self._compiles = module, compiles
        self.how: How = "off"
        """What is done, which may be less than what was asked for."""
        self._compiled: dict[Callable[..., Parts], Callable[..., Parts]] = {}
        self._seen: dict[object, int] = {}
        self._graphs: dict[object, Graph] = {}
        self._pool: Any = None
        self._turn = 0
        self._gradients: dict[int, list[Tensor | None]] = {}

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Those of the module, for all that a step does with them. Gathered once, when it is where it trains: to look
        for them takes a good part of the launching of a small step."""
        return list(self._module.parameters())

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients must stay where they are from step to step, zeroed and not freed."""
        return self.how == "graphs"

    def zero_gradients(self, turn: int) -> None:
        """Zeros where graphs add to, and none that another turn of the step had: a parameter that has one is moved."""
        if turn != self._turn:
            self._gradients[self._turn] = [parameter.grad for parameter in self.parameters]
            _put(self.parameters, self._gradients.get(turn))
            self._turn = turn
        if found := [parameter.grad for parameter in self.parameters if parameter.grad is not None]:
            torch._foreach_zero_(found)

    def __call__(self, compute: Callable[..., Parts], *inputs: Any) -> dict[str, Tensor]:
        """Add up the gradients of the loss that `compute` says of `inputs`; its parts."""
        if self.how != "off" and self._compiles and compute not in self._compiled:
            self._compile(compute, inputs)
        if self.how == "graphs" and (found := self._replay(compute, inputs)):
            return found
        return _backward(*self._run(compute, inputs))

    def forget(self) -> None:
        """Give back the memory of graphs; they are captured again when they are needed."""
        self._seen.clear()
        self._graphs.clear()
        self._pool = None
        self._gradients.clear()

    def _compile(self, compute: Callable[..., Parts], inputs: tuple[Any, ...]) -> None:
        """Compile, and try both passes on `inputs`, which moves nothing."""
        compiler().config.recompile_limit = SHAPES
        self._compiled[compute] = torch.compile(compute, fullgraph=True, dynamic=False, backend=BACKEND)
        device = self.parameters[0].device
        if self.how == "graphs" and device.type != "cuda":
            self._settle("on", f"needs a GPU, found {device.type}")
        gradients = [parameter.grad for parameter in self.parameters]
        _put(self.parameters, None)
        with uncollected(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                self._compiled[compute](*inputs)[0].backward()  # type: ignore[no-untyped-call]
            except torch.OutOfMemoryError:
                pass  # the step itself will meet it too, where smaller micro-batches are taken
            except Exception as error:  # of as many kinds as there are compilers
                self._settle("off", error)
        _put(self.parameters, gradients)

    def _run(self, compute: Callable[..., Parts], inputs: tuple[Any, ...]) -> Parts:
        """Without a graph."""
        if self._compiles and self.how != "off":
            try:
                return self._compiled[compute](*inputs)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                self._settle("off", error)
        return compute(*inputs)

    def _replay(self, compute: Callable[..., Parts], inputs: tuple[Any, ...]) -> dict[str, Tensor] | None:
        """The parts by the graph of the inputs' shapes, captured when they have come a few times; None: not yet."""
        leaves, structure = tree_flatten(inputs)
        shapes = compute, str(structure), *((leaf.shape, leaf.dtype) for leaf in leaves)
        if (graph := self._graphs.get(shapes)) is None:
            self._seen[shapes] = self._seen.get(shapes, 0) + 1
            if self._seen[shapes] <= ORDINARY or len(self._graphs) == SHAPES:
                return None
            before = torch.cuda.get_rng_state()
            try:
                self._pool = self._pool or torch.cuda.graph_pool_handle()
                graph = self._graphs[shapes] = Graph(self._compiled.get(compute, compute), inputs, self._pool)
            except Exception as error:  # out of memory too: without graphs it fitted
                _leave_capture(before)
                self._settle("on" if self._compiles else "off", error)
        return graph(leaves) if graph and self.how == "graphs" else None

    def _settle(self, how: How, why: object) -> None:
        """Do less than what was asked for, and say so."""
        done = "as written" if how == "off" else "compiled, without graphs"
        reason = (str(why).strip().splitlines() or [type(why).__name__])[0]
        print(f"--compile {self.how}: {reason}; from here on {done}", file=sys.stderr)
        self.how = how
        self.forget()


def _backward(loss: Tensor, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add up the gradients of a loss; its parts.

    Nothing leads back from them to the passes: while those of one micro-batch are held, torch may sum gradients of the
    next on their stream, which ends a capture.
    """
    loss.backward()  # type: ignore[no-untyped-call]
    return {name: part.detach() for name, part in parts.items()}


def _put(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None] | None) -> None:
    """Gradients in the place of what parameters have; None: they have none."""
    for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
        parameter.grad = gradient


def _leave_capture(state: Tensor) -> None:
    """The device's generator as it was: a capture that failed leaves it waiting for its end."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())
    torch.cuda.set_rng_state(state)


class Graph:
    """Both passes of one shape as a CUDA graph: one launch a micro-batch. It adds to the gradients where they are.

    Dropout draws what it would without the graph: a replay begins where the device's generator stands.

    Graphs of one pool take the memory for what lies between the passes in turn: nothing of it outlives a replay, and
    parts, which do, are given away as copies before the next.
    """

    def __init__(self, compute: Callable[..., Parts], inputs: tuple[Any, ...], pool: Any) -> None:
        leaves, structure = tree_flatten(inputs)
        self._inputs = [leaf.clone() for leaf in leaves]
        self._graph = torch.cuda.CUDAGraph()
        cached = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        failed: Exception | None = None
        try:
            # Batches are made, and pinned, in another thread meanwhile. What an earlier training left, graphs too,
            # must not be freed in the middle of a capture.
            with uncollected(), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                try:
                    self._parts = _backward(*compute(*structure.unflatten(self._inputs)))
                except Exception as error:
                    failed = error
                    raise
        except Exception as ended:  # what is said at the end of a capture hides what went wrong in it
            raise failed or ended from None
        finally:
            torch.set_autocast_cache_enabled(cached)

    def __call__(self, leaves: list[Tensor]) -> dict[str, Tensor]:
        for mine, given in zip(self._inputs, leaves, strict=True):
            mine.copy_(given, non_blocking=True)
        self._graph.replay()
        return {name: part.clone() for name, part in self._parts.items()}
