"""What a learner gets is its own: private arrays that it may write to, and generators seeded for one training.

A learner that trains in place, also through torch, which ignores numpy's read-only flag, reaches nobody else.
"""

from __future__ import annotations

import array
import copy
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from client_sdk.chance import derive_seed

ONE_AT_A_TIME = threading.RLock()
"""Held while global generators are swapped. Re-entrant: a learner's loss may use another learner."""
_TWISTER = np.random.MT19937(0)
"""Numpy's global generator during a training: to make one takes longer than all other seeding."""
_ONLY_READS = "_only_reads"
Function = TypeVar("Function", bound=Callable[..., Any])


def only_reads(method: Function) -> Function:
    """Marks a learner's method that writes to none of its arguments: it gets no copies."""
    setattr(method, _ONLY_READS, True)
    return method


def reads_only(learner: Any, name: str) -> bool:
    """Whether the learner's method of this name is marked."""
    return hasattr(getattr(type(learner), name, None), _ONLY_READS)


def private(thing: Any) -> Any:
    """``thing`` with copies of its arrays, tensors and tables: in tuples, lists and dicts, and in the attributes of an
    object; a torch Dataset gives a new copy of an item at each access, unless it is a ``TensorDataset`` or says
    ``holds_its_items``: those are copied here. A file that is mapped is mapped anew, copy-on-write.

    Other objects within an object are shared, and so are the data set behind a torch ``Subset`` and an object that
    cannot be copied.
    """
    found = _plain(thing)
    if found is not thing or callable(thing) or isinstance(thing, type | str | bytes | int | float | None):
        return found
    torch_data: Any = sys.modules.get("torch.utils.data")
    try:
        found = copy.copy(thing)
        behind = torch_data is not None and isinstance(thing, torch_data.Subset)
        for name in _attributes(thing):
            if not behind:  # a copy of it for each client would be of all clients' data
                object.__setattr__(found, name, _plain(getattr(thing, name)))
        of_items = torch_data is not None and isinstance(thing, torch_data.Dataset)
        if of_items and type(thing) is not torch_data.TensorDataset and not hasattr(thing, "holds_its_items"):
            _give_private_items(found)
    except Exception:  # noqa: BLE001 - a connection, a lock: whatever its class does not let be copied
        return thing
    return found


def _attributes(thing: Any) -> list[str]:
    """The names of all attributes of the object itself, in its dict or in slots."""
    slots = [vars(owner).get("__slots__", ()) for owner in type(thing).__mro__]
    named = [name for one in slots for name in ((one,) if isinstance(one, str) else one)]
    return [*getattr(thing, "__dict__", ()), *(name for name in named if name[:2] != "__" and hasattr(thing, name))]


def _plain(thing: Any) -> Any:
    if isinstance(thing, str | bytes | int | float | None):
        return thing
    if isinstance(thing, np.ndarray):
        return _array(thing)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        return thing.detach().clone().requires_grad_(thing.requires_grad)
    if type(thing).__module__.split(".")[0] in ("pandas", "polars", "scipy") and hasattr(thing, "copy"):
        return thing.copy()
    if isinstance(thing, tuple):
        items = [_plain(item) for item in thing]
        return type(thing)(*items) if hasattr(thing, "_fields") else tuple(items)
    if isinstance(thing, list | dict | deque):
        found = copy.copy(thing)
        for place in thing if isinstance(thing, dict) else range(len(thing)):
            found[place] = _plain(thing[place])
        return found
    if isinstance(thing, bytearray | array.array):
        return thing[:]
    return np.array(thing).data if isinstance(thing, memoryview) else thing


def _array(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if given.dtype.hasobject:
        found = given.copy(order="K")
        for place, value in np.ndenumerate(given):
            found[place] = _plain(value)
        return found
    root = given
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not root.size:
        return given.copy(order="K")
    mapped = np.memmap(root.filename, np.uint8, "c", root.offset, (root.nbytes,))
    start = given.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return np.ndarray(given.shape, given.dtype, mapped, start, given.strides)


def _give_private_items(data: Any) -> None:
    """From now on each item of this data set is a copy."""

    def item(self: Any, index: Any) -> Any:
        return _plain(kind.__getitem__(self, index))

    def items(self: Any, indices: Any) -> Any:
        return [item(self, index) for index in indices]

    kind = type(data)
    methods = {"__getitem__": item} | ({"__getitems__": items} if hasattr(kind, "__getitems__") else {})
    data.__class__ = type(kind.__name__, (kind,), methods if hasattr(kind, "__getitem__") else {})


@contextmanager
def seeded(seed: int, round: int, device: str) -> Iterator[None]:
    """Seeds the global generators of Python, numpy and, where it is loaded, torch (on all its devices) by these three,
    and restores them on exit, also after an error. Trainings of other threads wait meanwhile; their own draws do
    not."""
    torch = sys.modules.get("torch")
    with ONE_AT_A_TIME:
        numbers: Any = np.random  # its stubs lack two functions
        states = random.getstate(), numbers.get_bit_generator(), _with_second_deviate(numbers)
        drawn = torch.random.default_generator.get_state() if torch is not None else None
        on_gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
        try:
            seed_generators(seed, round, device)
            yield
        finally:
            random.setstate(states[0])
            numbers.set_bit_generator(states[1])
            if states[2] is not None:
                numbers.set_state(states[2])
            if torch is not None:
                torch.random.default_generator.set_state(drawn)
                if on_gpus is not None:
                    torch.cuda.set_rng_state_all(on_gpus)
                elif torch.backends.cuda.is_built():  # as ``torch.manual_seed`` has left those that nothing had used
                    torch.cuda.manual_seed_all(torch.initial_seed())


class _Quiet(np.random.MT19937):
    """A bit generator that shows no state."""

    state = property(lambda self: {"bit_generator": ""})


_QUIET = _Quiet(0)


def _with_second_deviate(numbers: Any) -> dict[str, Any] | None:
    """The state of numpy's global generator where it keeps the second of two normal deviates, which it forgets when its
    bit generator is set again; else None. The state's 624 numbers are read in that case alone: that takes as long as
    all seeding."""
    owner = numbers.mtrand._rand
    own, owner._bit_generator = owner._bit_generator, _QUIET
    try:
        kept = numbers.get_state(legacy=False)
    finally:
        owner._bit_generator = own
    return numbers.get_state(legacy=False) if kept["has_gauss"] or kept["gauss"] else None


def seed_generators(seed: int, round: int, device: str) -> None:
    """Seeds them, and restores nothing: within ``seeded``. It starts no GPU."""
    torch, numbers = sys.modules.get("torch"), np.random
    random.seed(derive_seed("python", seed, round, device))
    numbers.set_bit_generator(_TWISTER)  # type: ignore[attr-defined]
    numbers.seed(divmod(derive_seed("numpy", seed, round, device), 2**32))
    if torch is not None:
        layers = derive_seed("layers", seed, round, device)
        torch.random.default_generator.manual_seed(layers)
        if torch.backends.cuda.is_built():  # it waits until a GPU is used; to ask for one would start it
            torch.cuda.manual_seed_all(layers)


def generator(seed: int, round: int, device: str) -> np.random.Generator:
    """A generator of the learner's own, by the same three."""
    return np.random.default_rng(derive_seed("generator", seed, round, device))
