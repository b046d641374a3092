"""`Seeded`: random functions of the user's whose numbers are a function of (seed, epoch, image id).

A library that draws random numbers has a generator with a state: a global one, or one of its own.
Its numbers depend on all that was drawn before, and a worker process begins with a copy of it, so
that all workers draw the same. Here the states are set before each call and put back after it.
"""

import functools
import inspect
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.utils.data import get_worker_info

from sa1bpack.arguments import MAX_WORD, whole_number
from sa1bpack.errors import OptionError
from sa1bpack.indices import current_occurrence
from sa1bpack.keywords import checks_options
from sa1bpack.random_words import words
from sa1bpack.transforms.batch import Items
from sa1bpack.wording import brief

# Of the words of an image in an epoch, those for functions of the user's; the repetition is added.
_DRAW = 1 << 62

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
# Generators that every program has.
_SHARED = (random, np.random, torch.default_generator)
_SHARED_STATES = {
    id(random.random.__self__),  # type: ignore[attr-defined]  # a method of a hidden Random
    id(np.random.rand.__self__),  # type: ignore[attr-defined]  # and of a RandomState
    id(torch.default_generator),
}

# Libraries whose objects are searched for generators, but not the globals of their functions.
_LIBRARIES = {"albumentations", "cv2", "kornia", "numpy", "PIL", "torch", "torchvision"}

_ATOMS = (str, bytes, int, float, complex, np.ndarray, np.generic, Tensor, ModuleType)

# Where a DataLoader takes samples of its dataset, and has them collated.
_FETCHING = "torch.utils.data._utils.fetch"

# One call at a time: the global states are those of all threads.
_calling = threading.RLock()


def _after_fork() -> None:
    """Replace the lock in a child: the thread that held it may be gone."""
    global _calling
    _calling = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Seeded:
    """A function of samples whose random numbers are seeded by (seed, epoch, image id).

    `sa1bpack.open(pack, transform=sa1bpack.Seeded(augment))` draws the same numbers for an image in
    an epoch, whatever batch it is in, in any worker process of any number, on any rank, and after a
    resume. Where an image comes several times in an epoch, each repetition draws other numbers.

    Before each call these are seeded, and after it they have the states that they had before:

    - Python's `random`, numpy's global `numpy.random`, and torch's generator of the CPU, from which
      torchvision's transforms v2 and Kornia draw;
    - every `numpy.random.Generator`, `RandomState`, `random.Random` and `torch.Generator` that the
      function holds, such as those of an Albumentations `Compose`: in its closure, in globals that
      it names, in its attributes, and in what these hold.

    A function with a parameter `rng` is also given a numpy Generator: `def augment(sample, rng)`.
    Use it for what cannot be found, such as a generator that is made in each call.

    The epoch is that of the batch where it is known: from make_dataloader, from a DataLoader whose
    batch_sampler is OrderedBatches, from IterableTarDataset, and in a batch of a loader. `ds[i]`
    has epoch 0, or that of `set_epoch`. With any other sampler, and in a dataset that takes
    `ds[i]`, such as ConcatDataset, `set_epoch` must be called before each epoch: until it was, a
    batch is an OptionError, and so is `ds[i]` in a DataLoader.

    A function of batches works too, such as Kornia's on a device or `fn` of `derive`: its numbers
    depend on all the image ids of the batch, so they are the same wherever the batch is. A batch of
    a Collate does not have its epoch: call `set_epoch` before each epoch.

    Attributes:
        function: the function.
        seed: the seed.

    Examples:
        >>> def crop(sample, rng):
        ...     left = int(rng.integers(0, 512))
        ...     return sample | {"image": sample["image"][:, left : left + 512]}
        >>> ds = sa1bpack.open("packed", transform=sa1bpack.Seeded(crop, seed=1))
        >>> bool((ds[0]["image"] == ds[0]["image"]).all())
        True
    """

    @checks_options
    def __init__(self, function: Callable[..., Any], *, seed: int = 0):
        """
        Args:
            function: a function of a sample, or of a batch.
            seed: 0 to 2**64 - 1.

        Raises:
            OptionError: a value that cannot be used.
        """
        if not callable(function):
            raise OptionError(f"function is {brief(function)}: choose a function of a sample")
        self.function = function
        self.seed = whole_number("seed", seed, 0, MAX_WORD)
        functools.update_wrapper(self, function, updated=())
        self._takes_rng = _has_rng(function)
        self._held: list[Any] | None = None
        # Whether set_epoch was called, and the epoch: in shared memory, to reach running workers.
        self._own_epoch = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._own_epoch.share_memory_()

    @property
    def epoch(self) -> int | None:
        """The epoch that `set_epoch` named last; None before."""
        is_set, epoch = self._own_epoch.tolist()
        return epoch % 2**64 if is_set else None

    @checks_options
    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for samples whose batch has none. It reaches workers that persist.

        Raises OptionError unless it is a whole number of 0 or more.
        """
        epoch = whole_number("epoch", epoch, 0, MAX_WORD)
        self._own_epoch[1] = epoch - 2**64 if epoch >= 2**63 else epoch
        self._own_epoch[0] = 1

    def __call__(self, item: Items, /, *others: Any, **named: Any) -> Any:
        """What the function returns for a sample or a batch.

        Raises OptionError for anything else, and for a sample or a batch whose epoch is not known.
        """
        image_id, epoch, repetition = self._key(item)
        with _calling:
            if self._held is None:
                self._held = held_generators(self.function)
            generators = [*_SHARED, *self._held]
            ids = np.array([image_id], np.int64)
            drawn = words(self.seed, epoch, ids, _DRAW + repetition, 1 + len(generators))
            of_rng, *seeds = drawn[0].tolist()
            if self._takes_rng:
                named["rng"] = np.random.Generator(np.random.PCG64(of_rng))
            with _seeded(generators, seeds):
                return self.function(item, *others, **named)

    def _key(self, item: Any) -> tuple[int, int, int]:
        """Image id, epoch and repetition of a sample; of a batch, a digest of its image ids."""
        current = current_occurrence()
        epoch = self.epoch
        repetition = 0
        if current is not None:
            repetition = current.repetition
            if current.epoch is not None:
                epoch = current.epoch
        if isinstance(item, Mapping) and "image_id" in item:
            if epoch is None and (current is not None or _is_for_dataloader()):
                raise OptionError(
                    "the sampler does not pass on the epoch, and every epoch would have the same "
                    "random numbers: take batches from make_dataloader, or from a DataLoader with "
                    "batch_sampler=sa1bpack.OrderedBatches(order, batch_size), or call set_epoch "
                    "of the Seeded before each epoch"
                )
            return int(item["image_id"]), epoch or 0, repetition
        if isinstance(item, Mapping) and "image_ids" in item:
            ids = np.asarray(torch.as_tensor(item["image_ids"]).cpu(), "<i8")
            digest = xxhash.xxh3_64_intdigest(ids.tobytes())
            if "epoch" in item:  # one per sample, where another library takes batches
                epochs = torch.as_tensor(item["epoch"]).flatten().tolist()
                epoch = epochs[0] % 2**64 if epochs else 0
            if epoch is None:
                raise OptionError(
                    "the batch does not say of which epoch it is, as one that a Collate has made, "
                    "and may have the same random numbers in every epoch: take batches from Loader "
                    "or make_dataloader, or call set_epoch of the Seeded before each epoch"
                )
            return digest - 2**63, epoch, 0
        raise OptionError(
            f"Seeded was called with {type(item).__name__}: it takes a sample with its image_id, "
            "or a batch with its image_ids; wrap the function that is given the sample itself"
        )

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", None) or type(self.function).__name__
        return f"Seeded({name}, seed={self.seed})"

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_held": None}  # in another process they are others


def _has_rng(function: Callable[..., Any]) -> bool:
    """True if a function has a parameter of the name `rng`."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions in C have no signature
        return False


def _is_for_dataloader() -> bool:
    """True if a DataLoader of torch's takes samples here, which it tells in its workers alone."""
    if get_worker_info() is not None:
        return True
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _FETCHING:
            return True
        frame = frame.f_back
    return False


@contextmanager
def _seeded(generators: list[Any], seeds: list[int]) -> Iterator[None]:
    """Seed generators, and put their states back after the block."""
    saved = [_saved(generator) for generator in generators]
    try:
        for generator, seed in zip(generators, seeds, strict=True):
            _seed(generator, seed)
        yield
    finally:
        for restore in saved:
            restore()


def _saved(generator: Any) -> Callable[[], Any]:
    """A function that puts back the state which a generator has now."""
    if isinstance(generator, torch.Generator):
        return functools.partial(generator.set_state, generator.get_state())
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return functools.partial(setattr, bits, "state", bits.state)
    if generator is np.random or isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state(legacy=False))
    return functools.partial(generator.setstate, generator.getstate())


def _seed(generator: Any, seed: int) -> None:
    """Seed a generator with a word of 64 bits."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif generator is np.random or isinstance(generator, np.random.RandomState):
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        generator.seed(seed)


def held_generators(function: Any) -> list[Any]:
    """The random generators that a function holds, but not the global ones, in a fixed order.

    They are looked for in its closure, its defaults, the globals that its code names, its
    attributes, and in what these hold: containers, objects and functions.
    """
    held: list[Any] = []
    seen: dict[int, Any] = {}  # keeps what it has seen, so that no identity is used twice
    waiting = deque([function])
    while waiting:
        value = waiting.popleft()
        if value is None or isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom):
            if id(value) not in _SHARED_STATES:
                held.append(value)
        elif not _is_foreign(value):
            waiting.extend(_parts(value))
    return held


def _package_of(value: Any) -> str:
    """The top-level package of a function, a class, or the class of an object."""
    named = value if isinstance(value, FunctionType | type) else type(value)
    return str(named.__module__).partition(".")[0]


def _is_foreign(value: Any) -> bool:
    """True for what is not searched: objects of this package, code of libraries.

    A Seeded within another function seeds what it holds by itself.
    """
    package = _package_of(value)
    if package == "sa1bpack":
        return True
    return isinstance(value, FunctionType | type) and (
        package in _LIBRARIES or package in sys.stdlib_module_names
    )


def _parts(value: Any) -> Iterator[Any]:
    """What a value holds."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple | deque):
        yield from value
    if isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, BuiltinMethodType):
        yield value.__self__
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, type):
        yield from vars(value).values()
    else:
        yield from getattr(value, "__dict__", {}).values()
        for kind in type(value).__mro__:
            for name in _slots_of(kind):
                yield getattr(value, name, None)
            yield kind
    if isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget


def _slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class."""
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _parts_of_function(function: FunctionType) -> Iterator[Any]:
    """Values of the closure, the defaults, the named globals and the attributes of a function."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = (function.__kwdefaults__ or {}).values()
    yield from chain(function.__defaults__ or (), defaults, vars(function).values())
    for name in _names_in(function.__code__):
        yield function.__globals__.get(name)


def _names_in(code: CodeType) -> Iterator[str]:
    """The global names and attributes that a code uses, and those of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
