"""Local steps by a graph: loss and gradients are traced once for each shape of a batch, and played at each step.

Autograd records each step anew, and writes gradients that the optimizer then adds to the weights. A graph is traced
with ``make_fx`` from one step, and holds only calls of torch's operators. Where local SGD is plain
(``PlainSGD``, no proximal term, no clipping, no offset), the weights' update is part of it: w <- w - lr d^T x of a
dense layer is one ``addmm_`` into w, so that its gradient is never written. No compiler is needed. Updates are those of
autograd but for the order of roundings.

What a model does besides calling operators on tensors is done while it is traced, and not again: a counter that is a
Python number, or a branch on one. Who uses graphs compares them with autograd first (``simulation.engines.steps``).

Not traced, and trained by autograd, are models whose step has more than ``MOST_OPERATIONS``, those that read values of
tensors in Python, and batches that are not two tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

MOST_OPERATIONS = 2000
"""Of a step that is traced: to trace takes about a millisecond for each."""
MOST_SHAPES = 16
"""Of larger batches only whole ones are traced: the smaller last one of an epoch may have as many shapes."""
_aten = torch.ops.aten
_Found = tuple[torch.Tensor, Any, Any]
"""The objective, and (sum, weight) of a loss that gives a pair, else (None, None)."""


class NotTraced(Exception):
    """This step cannot be traced: the message says why, without a full stop."""


class Graphs:
    """The graphs of one learner, by shapes; its models differ by their values alone."""

    def __init__(self, loss: Callable[[Any, Any], Any]) -> None:
        self._loss = loss
        self._graphs: dict[object, Graph | None] = {}
        self.reason = ""
        """Why a step was not traced, the first one; empty where all were."""

    def __getstate__(self) -> dict[str, Any]:
        """Another process traces anew: a graph is code of this one."""
        return {**self.__dict__, "_graphs": {}}

    def bound(self, module: nn.Module, params: Sequence[nn.Parameter], *, fused: bool) -> Bound:
        """For one training of ``module``. ``fused``: a graph updates the weights; else it gives gradients."""
        return Bound(self, module, params, fused)

    def of(
        self, names: Names, module: nn.Module, tensors: list[list[torch.Tensor]], x: Any, y: Any, fused: bool
    ) -> Any:
        """The graph for a batch like this one; None where its step cannot be traced."""
        if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
            self.reason = self.reason or "a batch is not two tensors"
            return None
        key = (names.trained, x.shape, x.dtype, y.shape, y.dtype, fused)
        if key not in self._graphs:
            try:
                self._graphs[key] = Graph(module, self._loss, names, tensors, x, y, fused=fused)
            except NotTraced as reason:
                self.reason = self.reason or str(reason)
                self._graphs[key] = None
        return self._graphs[key]


class Names:
    """The names of a module's tensors: the trained parameters, and what else it computes with."""

    def __init__(self, module: nn.Module, params: Sequence[nn.Parameter]) -> None:
        found = dict([*module.named_parameters(), *module.named_buffers()])
        name_of = {id(tensor): name for name, tensor in found.items()}
        self.trained = tuple(name_of[id(one)] for one in params)
        self.others = tuple(name for name in found if name not in self.trained)
        self.tensors = [[one.detach() for one in params], [found[name].detach() for name in self.others]]


class Bound:
    """The graphs on the tensors of one module."""

    def __init__(self, graphs: Graphs, module: nn.Module, params: Sequence[nn.Parameter], fused: bool) -> None:
        self._graphs, self._module, self._params = graphs, module, params
        self._names = Names(module, params)
        self.fused = fused

    def step(self, x: Any, y: Any, learning_rate: float) -> _Found | None:
        """One step on this batch, with the weights' update where ``fused``; else gradients are set. None: it cannot be
        traced, and nothing was done."""
        graph = self._graphs.of(self._names, self._module, self._names.tensors, x, y, self.fused)
        if graph is None:
            return None
        weights, others = self._names.tensors
        if self.fused:
            with torch.inference_mode():
                found: _Found = graph.play(*weights, *others, x, y, -learning_rate)
                return found
        with torch.no_grad():
            *result, gradients = graph.play(*weights, *others, x, y)
        for weight, gradient in zip(self._params, gradients, strict=True):
            weight.grad = gradient
        return tuple(result)


class Graph:
    """One step on a batch of one shape: ``play(*weights, *others, x, y, -lr)``. NotTraced where it cannot be."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Any],
        names: Names,
        tensors: list[list[torch.Tensor]],
        x: torch.Tensor,
        y: torch.Tensor,
        *,
        fused: bool,
    ) -> None:
        def run(weights: list[torch.Tensor], others: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
            weights = [one.detach().requires_grad_() for one in weights]
            own = dict(zip(names.trained, weights, strict=True)) | dict(zip(names.others, others, strict=True))
            return of_step(lambda: functional_call(module, own, (x,)), loss, y, weights)

        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            weights, others = ([one.clone() for one in kind] for kind in tensors)
            self.play = played(_traced(run, weights, others, x, y), len(names.trained), fused=fused)
            self._try(*weights, *others, x, y, *([0.0] if fused else []))

    def _try(self, *arguments: Any) -> None:
        """Some operators can be traced, and not be called again as they were."""
        try:
            with torch.no_grad():
                self.play(*arguments)
        except Exception as error:
            raise NotTraced(f"its graph cannot be played: {type(error).__name__}: {error}") from error


def of_step(
    outputs: Callable[[], Any], loss: Callable[[Any, Any], Any], y: Any, weights: Sequence[torch.Tensor]
) -> tuple[Any, Any, Any, tuple[torch.Tensor | None, ...]]:
    """What a step computes: objective, (sum, weight) of a pair, gradients."""
    found, total, weight = loss(outputs(), y), None, None
    if isinstance(found, tuple):
        if len(found) != 2:
            raise NotTraced("its loss gives no number and no pair")
        total, weight = found
        if isinstance(weight, torch.Tensor):  # of the weight 0 the sum, whose gradient is zero
            found = total / torch.where(weight == 0, torch.ones_like(weight), weight)
        else:
            found = total / weight if weight else total
        total = total.detach()
    if not isinstance(found, torch.Tensor) or found.numel() != 1 or not found.requires_grad:
        raise NotTraced("its loss is not one number that depends on a trained tensor")
    gradients = torch.autograd.grad(found, list(weights), allow_unused=True)
    if any(one is not None and one.layout is not torch.strided for one in gradients):
        raise NotTraced("it has sparse gradients")
    return found.detach(), total, weight, gradients


def _traced(run: Callable[..., Any], *arguments: Any) -> fx.Graph:
    """The operators that ``run`` calls."""
    try:
        with _Counting():
            run(*arguments)
        return make_fx(run)(*arguments).graph
    except NotTraced:
        raise
    except Exception as error:
        line = (str(error).strip() or "no message").split("\n", 1)[0].rstrip(".")
        plain = next((reason for said, reason in _REASONS.items() if said in line), None)
        raise NotTraced(plain or f"tracing failed with {type(error).__name__}: {line[:200]}") from error


_REASONS = {
    "in randomness error mode": "its model draws random numbers, as dropout does, which a stack would draw for all of "
    "its clients at once",
    "mutate a captured Tensor": "its model writes to a tensor in place, as BatchNorm does, and a stack's clients share "
    "that tensor",
    "get value out of a tracing tensor": "its model or its loss reads a tensor's values in Python",
    "calling .item() on a Tensor": "its model or its loss reads a tensor's values in Python",
}
"""What torch says of a step that it does not trace, and why that is."""


class _Counting(TorchDispatchMode):
    """Ends a step that calls more than ``MOST_OPERATIONS``: to trace it would take long."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._called = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        self._called += 1
        if self._called > MOST_OPERATIONS:
            raise NotTraced(f"a step calls more than {MOST_OPERATIONS:,} operators")
        return func(*args, **(kwargs or {}))


class StackedGraph:
    """One step of several models at once, each on a batch of its own of one shape: ``play(*weights, *others, x, y,
    -lr)``, where each tensor has a first axis of models, gives the objective of each; where it is not ``fused``, it has
    no last argument, and gives (objectives, None, None, gradients). NotTraced where it cannot be."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Any, Any], Any],
        names: Names,
        x: torch.Tensor,
        y: torch.Tensor,
        *,
        fused: bool,
    ) -> None:
        def one(weights: list[torch.Tensor], others: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> Any:
            def objective(weights: list[torch.Tensor]) -> Any:
                own = dict(zip(names.trained, weights, strict=True)) | dict(zip(names.others, others, strict=True))
                found = loss(functional_call(module, own, (x,)), y)
                if not isinstance(found, torch.Tensor):
                    raise NotTraced("its loss gives a pair")
                return found

            gradients, value = grad_and_value(objective)(weights)
            return value, None, None, *gradients

        def run(*arguments: Any) -> Any:
            axes: Any = (0, None, None, *(0 for _ in names.trained))
            return vmap(one, randomness="error", out_dims=axes)(*arguments)

        kinds = [[one.expand(len(x), *one.shape).clone() for one in kind] for kind in names.tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            self.play = played(_traced(run, *kinds, x, y), len(names.trained), fused=fused)


# ------------------------------------------------------------ rewriting


def played(graph: fx.Graph, weights: int, *, fused: bool) -> Callable[..., Any]:
    """The graph as a function of its tensors one by one. Its first ``weights`` arguments are the trained ones.
    ``fused``: it has a last argument, the factor of the gradients, and adds them to the weights."""
    _plain(graph)
    end = next(node for node in graph.nodes if node.op == "output")
    outputs: Any = end.args[0]
    result, gradients = outputs[:3], outputs[3:]
    end.args = ((*result, *([] if fused else [tuple(gradients)])),)
    if fused:
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        with graph.inserting_after(inputs[-1]):
            factor = graph.placeholder("factor")
        with graph.inserting_before(end):
            for weight, gradient in zip(inputs[:weights], gradients, strict=True):
                if gradient is not None:
                    _add(graph, weight, gradient, factor)
    graph.eliminate_dead_code(_is_needed)
    _direct(graph)
    graph.set_codegen(fx.graph.CodeGen())
    holder = graph.owning_module
    made: Callable[..., Any] = fx.GraphModule(nn.Module() if holder is None else holder, graph).forward
    return made


def _is_needed(node: fx.Node) -> bool:
    """Whether the node stays though nothing uses what it gives: it writes to a tensor."""
    return node.is_impure() or node.op == "call_method"


def _plain(graph: fx.Graph) -> None:
    """Removes what changes nothing: views that autograd and vmap make of a whole tensor in the shape that it has,
    transpositions of transpositions, and products with 1."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.args and isinstance(of := node.args[0], fx.Node):
            if (node.target in _VIEWS and _shape(node) == _shape(of)) or _is_product_with_1(node):
                node.replace_all_uses_with(of)
            elif (axes := _swapped(node)) is not None and axes == _swapped(of):
                node.replace_all_uses_with(of.args[0])
    graph.eliminate_dead_code()


_VIEWS = {
    _aten.detach.default,
    _aten.alias.default,
    _aten.expand.default,
    _aten.view.default,
    _aten._unsafe_view.default,
}


def _is_product_with_1(node: fx.Node) -> bool:
    """Whether it is one, which nothing writes to."""
    if node.target is not _aten.mul.Scalar or node.args[1] != 1:
        return False
    same = node.meta["val"].dtype == node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    return same and not any(user.is_impure() for user in node.users)


def _shape(node: fx.Node) -> torch.Size:
    found: torch.Size = node.meta["val"].shape
    return found


def _swapped(node: fx.Node) -> tuple[int, ...] | None:
    """The two axes that the node swaps; None: it does something else."""
    if node.target is _aten.t.default:
        return (0, 1)
    if node.target is _aten.transpose.int:
        axes: Any = node.args[1:]
        return tuple(sorted(axis % len(_shape(node)) for axis in axes))
    return None


def _add(graph: fx.Graph, weight: fx.Node, gradient: fx.Node, factor: fx.Node) -> None:
    """weight <- weight + factor gradient, by one call where the gradient is a product of matrices."""
    products: dict[Any, str] = {_aten.mm.default: "addmm_", _aten.bmm.default: "baddbmm_"}
    fused = products.get(gradient.target)
    if fused is not None and not gradient.users:
        graph.call_method(fused, (weight, *gradient.args), {"alpha": factor})
    else:
        graph.call_method("add_", (weight, gradient), {"alpha": factor})


def _direct(graph: fx.Graph) -> None:
    """Calls torch's own functions, which parse their arguments faster than ``torch.ops``, where they are the same
    operators."""
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
            continue
        name = node.target._schema.name.removeprefix("aten::")
        if name in _METHODS:
            node.op, node.target = "call_method", name
        elif name in _FUNCTIONS:
            node.target = getattr(torch, name)


_METHODS = frozenset(("view", "expand"))
_FUNCTIONS = frozenset(
    (
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "add", "addmm", "baddbmm",
        "bmm", "convolution", "div", "mm", "mul", "native_layer_norm", "ones_like", "permute", "relu", "sigmoid",
        "squeeze", "sub", "sum", "t", "tanh", "transpose", "unsqueeze",
    )
)  # fmt: skip
