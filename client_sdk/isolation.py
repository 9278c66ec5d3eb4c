"""What a learner gets is its own: private arrays that it may write to, and generators seeded for one training.

A learner that trains in place, also through torch, which ignores numpy's read-only flag, reaches nobody else.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
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
    """``thing`` with copies of its arrays, tensors and tables: in tuples, lists and dicts, in the attributes of an
    object, and in the items of a torch ``Subset``. A file that is mapped is mapped anew, copy-on-write.

    Other objects within an object are shared, and an object that cannot be copied.
    """
    if isinstance(thing, tuple | list | dict):
        return _plain(thing)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(thing, torch_data.Subset):
        return _with_private_items(thing)
    found = _plain(thing)
    if found is not thing or not hasattr(thing, "__dict__") or callable(thing) or isinstance(thing, type):
        return found
    try:
        found = copy.copy(thing)
        for name, value in vars(thing).items():
            found.__dict__[name] = _plain(value)
    except Exception:  # noqa: BLE001 - a connection, a lock: whatever its class does not let be copied
        return thing
    return found


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
    if type(thing) is list:
        return [_plain(item) for item in thing]
    if type(thing) is dict:
        return {key: _plain(value) for key, value in thing.items()}
    return thing


def _array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.hasobject:
        found = array.copy(order="K")
        for place, value in np.ndenumerate(array):
            found[place] = _plain(value)
        return found
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.filename is None or not root.size:
        return array.copy(order="K")
    mapped = np.memmap(root.filename, np.uint8, "c", root.offset, (root.nbytes,))
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return np.ndarray(array.shape, array.dtype, mapped, start, array.strides)


def _with_private_items(subset: Any) -> Any:
    """A subset whose items are copies. The data set behind it is shared: a copy for each client would be of all."""

    def item(self: Any, index: Any) -> Any:
        return _plain(kind.__getitem__(self, index))

    def items(self: Any, indices: Any) -> Any:
        return [item(self, index) for index in indices]

    kind = type(subset)
    found = copy.copy(subset)
    found.__class__ = type(kind.__name__, (kind,), {"__getitem__": item, "__getitems__": items})
    return found


@contextmanager
def seeded(seed: int, round: int, device: str) -> Iterator[None]:
    """Seeds the global generators of Python, numpy and, where it is loaded, torch (on all its devices) by these three,
    and restores them on exit, also after an error. Trainings of other threads wait meanwhile; their own draws do
    not."""
    torch = sys.modules.get("torch")
    with ONE_AT_A_TIME:
        numbers: Any = np.random  # its stubs lack two functions
        states = random.getstate(), numbers.get_bit_generator(), numbers.get_state(legacy=False)
        drawn = torch.random.default_generator.get_state() if torch is not None else None
        on_gpus = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
        try:
            seed_generators(seed, round, device)
            yield
        finally:
            random.setstate(states[0])
            numbers.set_bit_generator(states[1])
            numbers.set_state(states[2])
            if torch is not None:
                torch.random.default_generator.set_state(drawn)
                if on_gpus is not None:
                    torch.cuda.set_rng_state_all(on_gpus)
                elif torch.backends.cuda.is_built():  # as ``torch.manual_seed`` has left those that nothing had used
                    torch.cuda.manual_seed_all(torch.initial_seed())


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
