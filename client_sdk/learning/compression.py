"""Gradients that take fewer bytes on the wire, for links that are slow: what ``datacenter.compress`` names.

Each is a communication hook of DistributedDataParallel, which exchanges a bucket's gradients and gives their mean. What
one step leaves out is added to the next one (error feedback: Seide et al. 2014, doi 10.21437/Interspeech.2014-274;
Karimireddy et al. 2019, arXiv:1901.09847). Errors belong to parameters, not to buckets, whose layout changes after the
first backward pass. All ranks get the same bits.

================= ==================================================================== ==============================
name              what is sent of a parameter's gradient                               bytes of n values, float32
================= ==================================================================== ==============================
fp16, bf16        its values in 16 bits                                                2n
powersgd          two thin matrices whose product is near (Vogels et al. 2019,         4 rank (rows + columns)
                  arXiv:1905.13727); whole where it has one dimension
topk              the largest of what has piled up, after momentum (Lin et al. 2018,   8n density, from each rank
                  arXiv:1712.01887)
1bit              signs, and the mean magnitude of each row                            n/8 + 4 rows, from each rank
2bit              zero, or the sign where it is above its row's mean magnitude, and    n/4 + 4 rows, from each rank
                  the mean of those
================= ==================================================================== ==============================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from client_sdk.chance import derive_seed
from client_sdk.learning.group import Group

Name = str


class Compressor(ABC):
    """Exchanges the gradients of one step after the other. ``sent``: bytes that this rank has handed to collectives."""

    def __init__(self, group: Group) -> None:
        self.group, self.sent = group, 0
        self.kept: dict[str, torch.Tensor] = {}
        """By name: what the next step needs, on this rank."""

    @abstractmethod
    def mean(self, gradients: Mapping[Name, torch.Tensor]) -> None:
        """Replace each gradient, of this rank, by the mean over the ranks, or what is near."""

    def shared(self) -> frozenset[str]:
        """Names in ``kept`` that are the same on all ranks; of the others each rank has its own errors."""
        return frozenset()

    def _all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean."""
        self.sent += tensor.numel() * tensor.element_size()
        dist.all_reduce(tensor)
        return tensor.div_(self.group.world)

    def _gathered(self, vectors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Of each vector: what each rank has there. In one message."""
        flat, sizes = torch.cat(list(vectors)), [len(one) for one in vectors]
        self.sent += flat.numel() * flat.element_size()
        found = [torch.empty_like(flat) for _ in range(self.group.world)]
        dist.all_gather(found, flat)
        return zip(*(one.split(sizes) for one in found), strict=True)

    def _with_error(self, name: Name, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient and what earlier steps have left out of it."""
        error = self.kept.get(name)
        return gradient.clone() if error is None else gradient + error


class Halves(Compressor):
    """Sixteen bits a value. Of fp16, values above 65,504 are infinite, and the step is refused as not finite."""

    def __init__(self, group: Group, kind: torch.dtype) -> None:
        super().__init__(group)
        self._kind = kind

    def mean(self, gradients: Mapping[Name, torch.Tensor]) -> None:
        flat = torch.cat([one.reshape(-1) for one in gradients.values()]).div_(self.group.world).to(self._kind)
        self.sent += flat.numel() * flat.element_size()
        dist.all_reduce(flat)
        _spread(flat, list(gradients.values()))


class PowerSGD(Compressor):
    """Algorithm 1 of Vogels et al. 2019: one step of a power iteration for each gradient, from the matrix of the step
    before."""

    def __init__(self, group: Group, rank: int, seed: int) -> None:
        super().__init__(group)
        self._rank, self._seed = rank, seed

    def shared(self) -> frozenset[str]:
        return frozenset(name for name in self.kept if name.startswith("matrix "))

    def mean(self, gradients: Mapping[Name, torch.Tensor]) -> None:
        rest = [one for one in gradients.values() if one.ndim < 2]
        if rest:
            _spread(self._all_reduce(torch.cat([one.reshape(-1) for one in rest])), rest)
        whole = {name: one for name, one in gradients.items() if one.ndim >= 2}
        if not whole:
            return
        rows = {name: self._with_error(name, one).reshape(one.shape[0], -1) for name, one in whole.items()}
        right = {name: self._matrix(name, one) for name, one in rows.items()}
        left = {name: one @ right[name] for name, one in rows.items()}
        _spread(self._all_reduce(torch.cat([one.reshape(-1) for one in left.values()])), list(left.values()))
        for name, one in left.items():
            left[name] = torch.linalg.qr(one)[0]
            right[name] = rows[name].T @ left[name]
        _spread(self._all_reduce(torch.cat([one.reshape(-1) for one in right.values()])), list(right.values()))
        for name, one in whole.items():
            near = left[name] @ right[name].T
            self.kept[name] = (rows[name] - near).reshape(one.shape)
            self.kept[f"matrix {name}"] = right[name]
            one.copy_(near.reshape(one.shape))

    def _matrix(self, name: Name, rows: torch.Tensor) -> torch.Tensor:
        """[columns, rank], with orthogonal columns; first drawn by the parameter's name."""
        found = self.kept.get(f"matrix {name}")
        if found is None:
            generator = torch.Generator().manual_seed(derive_seed("powersgd", self._seed, 0, name))
            shape = (rows.shape[1], min(self._rank, *rows.shape))
            found = torch.randn(shape, generator=generator, dtype=torch.float64).to(rows)
        orthogonal: torch.Tensor = torch.linalg.qr(found)[0]
        return orthogonal


class TopK(Compressor):
    """Deep Gradient Compression: momentum is taken before the choice, and what was sent loses its momentum too, so that
    a late value brings no stale one (sections 3.1 and 3.2). The optimizer has no momentum then."""

    def __init__(self, group: Group, density: float, momentum: float) -> None:
        super().__init__(group)
        self._density, self._momentum = density, momentum

    def mean(self, gradients: Mapping[Name, torch.Tensor]) -> None:
        chosen = {}
        for name, one in gradients.items():
            fast = self.kept.get(f"momentum {name}", torch.zeros_like(one)).mul_(self._momentum).add_(one)
            piled = self._with_error(name, fast).reshape(-1)
            count = max(1, round(piled.numel() * self._density))
            chosen[name] = fast, piled, piled.abs().topk(count).indices
        kind = torch.int32 if max(one.numel() for one in gradients.values()) < 2**31 else torch.int64
        of_all = zip(
            self._gathered([places.to(kind) for _, _, places in chosen.values()]),
            self._gathered([piled[places] for _, piled, places in chosen.values()]),
            strict=True,
        )
        for (name, one), (there, values) in zip(gradients.items(), of_all, strict=True):
            fast, piled, places = chosen[name]
            total = torch.zeros_like(piled)
            for theirs, value in zip(there, values, strict=True):
                total.index_add_(0, theirs.long(), value)
            piled[places] = 0
            fast.view(-1)[places] = 0
            self.kept[name], self.kept[f"momentum {name}"] = piled.reshape(one.shape), fast
            one.copy_(total.div_(self.group.world).reshape(one.shape))


class Bits(Compressor):
    """One bit a value, or two, and one magnitude for each row of a matrix (each output of a layer). What is sent is
    the projection on what can be said, so the error is never longer than the gradient. With one magnitude for a tensor,
    rows that are nearly zero get steps as long as the others', and training was seen to fail."""

    def __init__(self, group: Group, bits: int) -> None:
        super().__init__(group)
        self._bits = bits

    def mean(self, gradients: Mapping[Name, torch.Tensor]) -> None:
        said = {}
        for name, one in gradients.items():
            piled = _rows(self._with_error(name, one))
            size = piled.abs()
            chosen = size >= (0 if self._bits == 1 else size.mean(1, keepdim=True))
            scale = (size * chosen).sum(1) / chosen.sum(1).clamp(min=1)
            codes = [piled >= 0] if self._bits == 1 else [piled >= 0, chosen]
            said[name] = piled, torch.cat([_packed(code.reshape(-1)) for code in codes]), scale
        of_all = zip(
            self._gathered([packed for _, packed, _ in said.values()]),
            self._gathered([scale for _, _, scale in said.values()]),
            strict=True,
        )
        for (name, one), (there, factors) in zip(gradients.items(), of_all, strict=True):
            piled, packed, scale = said[name]
            total = torch.zeros_like(piled)
            for theirs, factor in zip(there, factors, strict=True):
                total += _signs(theirs, piled, self._bits, factor)
            self.kept[name] = (piled - _signs(packed, piled, self._bits, scale)).reshape(one.shape)
            one.copy_(total.div_(self.group.world).reshape(one.shape))


def _spread(flat: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy the values of one vector into tensors."""
    start = 0
    for part in parts:
        part.copy_(flat[start : start + part.numel()].reshape(part.shape))
        start += part.numel()


_WEIGHTS = (128, 64, 32, 16, 8, 4, 2, 1)


def _packed(flags: torch.Tensor) -> torch.Tensor:
    """Eight to a byte."""
    padded = torch.zeros(-(-flags.numel() // 8) * 8, dtype=torch.uint8, device=flags.device)
    padded[: flags.numel()] = flags
    return (padded.reshape(-1, 8) * padded.new_tensor(_WEIGHTS)).sum(1, dtype=torch.uint8)


def _unpacked(packed: torch.Tensor, count: int) -> torch.Tensor:
    return (packed[:, None] & packed.new_tensor(_WEIGHTS) > 0).reshape(-1)[:count]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A row for each first index of a matrix or more; a vector is one row."""
    return tensor.flatten(1) if tensor.dim() > 1 else tensor.reshape(1, -1)


def _signs(packed: torch.Tensor, like: torch.Tensor, bits: int, scale: torch.Tensor) -> torch.Tensor:
    """Of the shape of ``like``; ``scale``: a magnitude for each row."""
    parts, rows = packed.tensor_split(bits), scale[:, None].expand(like.shape)
    signs = torch.where(_unpacked(parts[0], like.numel()).reshape(like.shape), rows, -rows)
    return signs if bits == 1 else signs * _unpacked(parts[1], like.numel()).reshape(like.shape)


def hook_of(compressor: Compressor, names: Mapping[int, Name]) -> Callable[[Any, Any], Any]:
    """For ``register_comm_hook``. ``names``: of each parameter, by id; others, by which ranks tell each other how they
    are, are averaged exactly."""

    def exchange(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        parts = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        for weight, gradient in parts:
            if id(weight) not in names:
                dist.all_reduce(gradient)
                gradient.div_(compressor.group.world)
        chosen = {names[id(weight)]: gradient for weight, gradient in parts if id(weight) in names}
        if chosen:
            compressor.mean(chosen)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    exchange.__annotations__.clear()  # DDP compares them with types, and here they are text
    return exchange
