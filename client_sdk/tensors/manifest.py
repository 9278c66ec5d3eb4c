"""The description of tensors (names, dtypes, shapes, in file order; which are statistics), and the errors of tensors.

Errors::

    TensorError(ValueError)          anything wrong with tensors; its text is one plain sentence
    |- MalformedTensors              the bytes are not a safetensors file that this project accepts
    |  |- TruncatedTensors           the file ends before its header says so
    |  '- TrailingBytes              the file goes on after its header says it ends
    |- ManifestMismatch              a sound file with other names, shapes or dtypes than expected
    |- NotFinite                     NaN or infinity among the values
    '- OutOfRange                    a finite value, or a weight, outside the documented range
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import numpy as np

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]
Tensors = dict[str, Array]
"""Arrays by name. Order carries no meaning: files and flat vectors have an order of their own."""

BF16 = np.dtype([("bf16", "<u2")])
"""bfloat16 as a dtype of its own that needs no dependency: the upper 16 bits of a float32, in one field."""

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "U8": np.dtype("u1"),
        "I8": np.dtype("i1"),
        "I16": np.dtype("<i2"),
        "U16": np.dtype("<u2"),
        "F16": np.dtype("<f2"),
        "BF16": BF16,
        "I32": np.dtype("<i4"),
        "U32": np.dtype("<u4"),
        "F32": np.dtype("<f4"),
        "F64": np.dtype("<f8"),
        "I64": np.dtype("<i8"),
        "U64": np.dtype("<u8"),
    }
)
"""Known dtypes, in the order in which safetensors ranks them (a file holds the highest rank first)."""

FLOATING = frozenset({"F16", "BF16", "F32", "F64"})
"""The dtypes that can be averaged. F64 is averaged in float32's precision."""

DIMENSIONS_LIMIT = 32
"""Most dimensions of one tensor: every version of numpy supports so many."""

_RANK = {name: rank for rank, name in enumerate(NUMPY_DTYPES)}
_NAME_OF = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


class TensorError(ValueError):
    """An error of tensors. The text is one plain sentence that may be shown to their sender."""


class MalformedTensors(TensorError):
    """Not a safetensors file that this project accepts."""


class TruncatedTensors(MalformedTensors):
    """The bytes end before the header says so."""


class TrailingBytes(MalformedTensors):
    """The bytes go on after the header says they end."""


class ManifestMismatch(TensorError):
    """Other names, shapes or dtypes than expected."""


class NotFinite(TensorError):
    """NaN or infinity among the values."""


class OutOfRange(TensorError):
    """A finite value, or a weight, outside the documented range."""


def shown(name: str) -> str:
    """``name`` quoted for an error text, at most about 60 characters: a peer chose it."""
    return repr(name if len(name) <= 60 else name[:57] + "...")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype, little endian, of a safetensors dtype. MalformedTensors for unknown names."""
    if name not in NUMPY_DTYPES:
        raise MalformedTensors(f"dtype {shown(name)} is not one of {', '.join(NUMPY_DTYPES)}")
    return NUMPY_DTYPES[name]


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The safetensors name of a numpy dtype, either byte order. ManifestMismatch for dtypes that no file can hold."""
    name = _NAME_OF.get(dtype.newbyteorder("<"))
    if name is None:
        raise ManifestMismatch(f"arrays of dtype {dtype} cannot be stored; known are {', '.join(NUMPY_DTYPES)}")
    return name


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: ``dtype`` by its safetensors name, ``shape`` in elements (empty: a scalar)."""

    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.dtype, str) or self.dtype not in NUMPY_DTYPES:
            raise MalformedTensors(f"dtype {shown(str(self.dtype))} is not one of {', '.join(NUMPY_DTYPES)}")
        if len(self.shape) > DIMENSIONS_LIMIT:
            raise MalformedTensors(f"a tensor has {len(self.shape)} dimensions; at most {DIMENSIONS_LIMIT} are taken")
        if any(type(n) is not int or n < 0 for n in self.shape):
            raise MalformedTensors("a shape holds something else than whole numbers from 0 up")
        if math.prod(max(n, 1) for n in self.shape) * self.itemsize >= 2**62:
            raise MalformedTensors("a shape is larger than any memory")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return NUMPY_DTYPES[self.dtype].itemsize

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize


@lru_cache(maxsize=4096)
def _spec(dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """A checked spec. Cached, since a fleet's many updates have few shapes."""
    return TensorSpec(dtype, shape)


@lru_cache(maxsize=4096)
def _spec_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> TensorSpec:
    return _spec(dtype_name(dtype), shape)


@dataclass(frozen=True, slots=True)
class Manifest(Mapping[str, TensorSpec]):
    """Names and specs of the tensors of a file, in file order. Two are equal when names, dtypes and shapes are."""

    tensors: Mapping[str, TensorSpec]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    @classmethod
    def of(cls, tensors: Mapping[str, Array]) -> Manifest:
        """The manifest of arrays, in the order in which they are written."""
        return cls({name: _spec_of(a.dtype, a.shape) for name, a in tensors.items()}).in_file_order()

    def __getitem__(self, name: str) -> TensorSpec:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and dict(self.tensors) == dict(other.tensors)

    def __hash__(self) -> int:
        return hash(frozenset(self.tensors.items()))

    @property
    def elements(self) -> int:
        """Elements of all tensors together: the dimension of the flat vector."""
        return sum(spec.elements for spec in self.tensors.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' data, header not counted."""
        return sum(spec.nbytes for spec in self.tensors.values())

    def in_file_order(self) -> Manifest:
        """This manifest in the sequence in which the safetensors library lays tensors out: by falling rank of
        the dtype, then by name."""
        return Manifest(dict(sorted(self.tensors.items(), key=lambda item: (-_RANK[item[1].dtype], item[0]))))

    def select(self, patterns: Iterable[str]) -> Manifest:
        """The float32 deltas of a model: its floating-point tensors among those that ``named`` finds, and the shared
        tensors of a strategy.

        All are F32, whatever the model's dtype, and so in the order of their names: the order of the flat vector that
        is summed. ManifestMismatch as ``named``, and when no floating-point tensor of the model matches.
        """
        wanted = tuple(patterns)
        own = [name for name in self.tensors if not is_shared(name)]
        found = named(own, wanted)
        averaged = {name: spec for name, spec in self.tensors.items() if spec.dtype in FLOATING and name in found}
        shared = {name: spec for name, spec in self.tensors.items() if is_shared(name)}
        if not averaged:
            raise ManifestMismatch(
                f"no floating-point tensor of the model matches {', '.join(map(shown, wanted)) or 'nothing'}"
            )
        return Manifest({**averaged, **shared}).as_float32()

    def with_dtype(self, dtype: str) -> Manifest:
        """A manifest with these names and shapes, all of ``dtype``, in file order."""
        return Manifest({name: _spec(dtype, spec.shape) for name, spec in self.tensors.items()}).in_file_order()

    def as_float32(self) -> Manifest:
        """The manifest of float32 deltas for these tensors: all F32, and so in the order of their names."""
        return self.with_dtype("F32")

    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the flat vector: name -> slice of elements, in this manifest's order."""
        found, start = {}, 0
        for name, spec in self.tensors.items():
            found[name] = slice(start, start + spec.elements)
            start += spec.elements
        return found

    def require(self, found: Manifest, what: str = "the update") -> None:
        """Raise ManifestMismatch, with one sentence that says what differs, unless ``found`` equals this manifest."""
        if found == self:
            return
        missing = sorted(self.tensors.keys() - found.tensors.keys())
        extra = sorted(found.tensors.keys() - self.tensors.keys())
        if missing or extra:
            parts = [
                f"{word} {_listed(names)}" for word, names in (("lacks", missing), ("has unexpected", extra)) if names
            ]
            raise ManifestMismatch(f"{what} {' and '.join(parts)}")
        for name, want in self.tensors.items():
            have = found.tensors[name]
            if have.dtype != want.dtype:
                raise ManifestMismatch(f"{what} has {shown(name)} as {have.dtype}, expected {want.dtype}")
            if have.shape != want.shape:
                raise ManifestMismatch(
                    f"{what} has {shown(name)} of shape {list(have.shape)}, expected {list(want.shape)}"
                )

    def to_json(self) -> str:
        """``[[name, dtype, shape], ...]`` in file order."""
        rows = [[name, spec.dtype, list(spec.shape)] for name, spec in self.tensors.items()]
        return json.dumps(rows, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """What ``to_json`` wrote. MalformedTensors for anything else."""
        try:
            rows = [(name, dtype, tuple(shape)) for name, dtype, shape in json.loads(text)]
        except (ValueError, TypeError, RecursionError):
            raise MalformedTensors("this is not a manifest: expected a list of [name, dtype, shape]") from None
        if any(not isinstance(name, str) for name, _, _ in rows) or len({name for name, _, _ in rows}) != len(rows):
            raise MalformedTensors("this is not a manifest: its names are not distinct texts")
        return cls({name: TensorSpec(dtype, shape) for name, dtype, shape in rows})


def named(names: Collection[str], patterns: Iterable[str]) -> frozenset[str]:
    """The names that ``patterns`` choose: a name, or a shell pattern (fnmatch), chooses what it matches; one
    behind "!" leaves out what it matches, wherever it stands. Where all of them leave out, they choose from all names.

    A text that is a name means that name: its brackets, and a "!" at its start, are plain characters then.
    ManifestMismatch for a pattern that matches no name, which is a slip of the pen.
    """
    chosen: set[str] = set()
    left_out: set[str] = set()
    wanted = tuple(patterns)
    only_left_out = bool(wanted)
    for pattern in wanted:
        leaves_out = pattern.startswith("!") and pattern not in names
        only_left_out = only_left_out and leaves_out
        (left_out if leaves_out else chosen).update(_matching(names, pattern[1:] if leaves_out else pattern))
    return frozenset(names if only_left_out else chosen) - left_out


def _matching(names: Collection[str], pattern: str) -> set[str]:
    if pattern in names and not set(pattern) & {"*", "?"}:
        return {pattern}
    matches = re.compile(translate(pattern)).match
    found = {name for name in names if name == pattern or matches(name)}
    if not found:
        near = get_close_matches(pattern, names, n=1)
        hint = f"; did you mean {shown(near[0])}?" if near else ""
        raise ManifestMismatch(f"no tensor of the model matches {shown(pattern)}{hint}")
    return found


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(shown(name) for name in names[:3]) + more


# ------------------------------------------------------------ roles
# The role of a tensor: a *parameter*, which training moves along gradients, or a *statistic* of the data or the
# weights, such as BatchNorm's running mean, which a model keeps beside them.
#
# An update's flat vector has the parameters first, in the order of their names, then the statistics in the order of
# theirs. So what is for parameters alone (a norm, a lossy codec, a server optimizer) sees a prefix of it. A model
# without statistics has the vector that it would have without roles.
#
# A *non-negative* statistic, such as a running variance, is never committed below 0.


StatisticRole = Literal["statistic", "non-negative"]
Roles = Mapping[str, StatisticRole]
"""The statistics of a model by name. The tensors that it does not name are parameters. Those of a run are the
statistics that its plan averages."""

BY_NAME: Roles = {
    "*running_mean": "statistic",
    "*running_var": "non-negative",
    "*moving_mean": "statistic",
    "*moving_var": "non-negative",
    "*moving_variance": "non-negative",
}
"""Shell patterns of names by which statistics are known where nobody says: those of PyTorch and of Keras."""


@dataclass(frozen=True)
class Layout:
    """The flat vector of an update: which tensors it has, in which order, and which of them are statistics."""

    parameters: Manifest
    """All F32, in the order of their names."""
    statistics: Manifest
    """All F32, in the order of their names."""
    non_negative: frozenset[str]
    """Which statistics are non-negative."""

    @classmethod
    def of(cls, model: Manifest, averaged: Iterable[str], roles: Roles) -> Layout:
        """The layout for the tensors of ``model`` that ``averaged`` chooses (``Manifest.select``). ManifestMismatch
        where it chooses none."""
        return cls.of_delta(model.select(averaged), roles)

    @classmethod
    def of_delta(cls, delta: Manifest, roles: Roles) -> Layout:
        """The layout of deltas, in the order of their names."""
        whole = delta.as_float32()
        return cls(
            parameters=Manifest({name: spec for name, spec in whole.items() if name not in roles}),
            statistics=Manifest({name: spec for name, spec in whole.items() if name in roles}),
            non_negative=frozenset(name for name, role in roles.items() if role == "non-negative" and name in whole),
        )

    @cached_property
    def whole(self) -> Manifest:
        """All tensors, in the vector's order."""
        return Manifest({**self.parameters, **self.statistics})

    @property
    def roles(self) -> dict[str, StatisticRole]:
        """The statistics in it."""
        return {name: "non-negative" if name in self.non_negative else "statistic" for name in self.statistics}

    @cached_property
    def elements(self) -> int:
        """Values of the vector."""
        return self.whole.elements


def digest_of(model: Manifest, roles: Roles) -> str:
    """SHA-256, in hexadecimal, over (name, dtype, shape, role) of all tensors in the order of their names: what a
    device agrees to. Empty where all are parameters: names, dtypes and shapes are those of the checkpoint, which has a
    digest of its own."""
    if not roles:
        return ""
    rows = [[name, spec.dtype, list(spec.shape), roles.get(name, "parameter")] for name, spec in sorted(model.items())]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def by_name(model: Manifest) -> dict[str, StatisticRole]:
    """The statistics that the names of a model's floating-point tensors tell."""
    found = {name: role for pattern, role in BY_NAME.items() for name in _floating(model) if fnmatchcase(name, pattern)}
    return dict(sorted(found.items()))


def stated(model: Manifest, said: Mapping[str, StatisticRole]) -> dict[str, StatisticRole]:
    """The statistics of a model of which somebody says roles by names, or by shell patterns of names, as ``named``
    takes them. Where both roles are said of a tensor, it is non-negative. ManifestMismatch for a pattern that matches
    no floating-point tensor, and as ``as_roles``."""
    found: dict[str, StatisticRole] = {}
    for pattern, role in as_roles(said).items():
        for name in named(_floating(model), (pattern,)):
            found[name] = "non-negative" if "non-negative" in (role, found.get(name)) else "statistic"
    return dict(sorted(found.items()))


def as_roles(said: Any) -> Roles:
    """What a user or a learner says of roles, as it is. ManifestMismatch unless it maps texts to roles: an unknown role
    would make a running variance a plain statistic, which may be committed below 0."""
    if not isinstance(said, Mapping):
        raise ManifestMismatch(
            f"a {type(said).__name__} says no roles: give a dict of names and roles, such as "
            '{"*.mean": "statistic", "*.var": "non-negative"}'
        )
    for name, role in said.items():
        if not isinstance(name, str) or role not in ("statistic", "non-negative"):
            raise ManifestMismatch(f"{name!r}: {role!r} is no name and role; roles are 'statistic' and 'non-negative'")
    return cast("Roles", said)


def _floating(model: Manifest) -> list[str]:
    return [name for name, spec in model.items() if spec.dtype in FLOATING]


def doubted(model: Manifest, roles: Roles) -> str:
    """A sentence where a learner's ``roles`` leave out tensors whose names are those of statistics; empty where they do
    not."""
    left = [name for name in by_name(model) if name not in roles]
    if not left:
        return ""
    more = f" and {len(left) - 4} more" if len(left) > 4 else ""
    return (
        f"The learner's roles() leave out {', '.join(left[:4])}{more}, named as statistics are: server optimizers and "
        "clipping will treat them as parameters."
    )


def told(roles: Roles, why: str = "By their names") -> str:
    """A sentence for people about roles that nobody has said."""
    names = [name + (" (never below 0)" if role == "non-negative" else "") for name, role in sorted(roles.items())]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{why} these tensors are statistics, not parameters: {', '.join(names[:4])}{more}."


# ------------------------------------------------------------ shared tensors
# A strategy's shared tensors travel with the model, as statistics beside its parameters: in the checkpoint from the
# coordinator to devices, as changes in updates back. Each has the shape of a parameter, whose name it has behind its
# own: ``~c/dense.weight``. No tensor of a model begins so.


def shared_name(name: str, parameter: str) -> str:
    """The name of the shared tensor ``name`` of this parameter."""
    return f"~{name}/{parameter}"


def is_shared(tensor: str) -> bool:
    """Whether this is the name of a strategy's shared tensor."""
    return tensor.startswith("~")


def of_model(tensors: Mapping[str, T]) -> dict[str, T]:
    """A checkpoint's tensors without a strategy's shared ones."""
    return {name: one for name, one in tensors.items() if not is_shared(name)}


def with_shared(
    model: Manifest, averaged: Iterable[str], roles: Roles, shared: Iterable[str]
) -> tuple[Manifest, dict[str, StatisticRole]]:
    """The manifest of a checkpoint of this model with these shared tensors, float32, for each parameter that is
    averaged, and its roles. Those that ``model`` has already are left out where they are not wanted."""
    own, names = Manifest(of_model(model)), tuple(shared)
    said = of_model(roles)
    parameters = Layout.of(own, averaged, said).parameters if names else {}
    more = {shared_name(name, one): spec for name in names for one, spec in parameters.items()}
    return Manifest({**own, **more}).in_file_order(), {**said, **dict.fromkeys(more, "statistic")}
