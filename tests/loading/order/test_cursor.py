"""The one state machine of an epoch: what a loader may do in any order, and what state follows."""

import pickle
import signal
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sa1bpack import Extent, LoaderError, OptionError, OrderedBatches, ShuffleOrder

ORDER = ShuffleOrder(Extent(20, "0123456789abcdef"), seed=3)
ENDED = r"ended by a new one .*set_epoch\(\), load_state_dict\(\) or close\(\)"


def place(cursor) -> tuple[int, int]:
    state = cursor.state_dict()
    return state["epoch"], state["samples"]


# --------------------------------------------------------------------------- any order of calls


@dataclass(frozen=True)
class Model:
    """Epoch and samples of the first batch of the latest iteration, and how many came out."""

    epoch: int = 0
    start: int = 0
    done: int = 0
    live: object = None  # of the running iteration
    loaded: tuple[int, int] | None = None  # epoch and start of a state, until a batch came out

    def batches(self) -> int:
        return -(-(20 - self.start) // 8)

    def state(self) -> tuple[int, int]:
        if self.loaded is not None and self.epoch < self.loaded[0]:
            return self.loaded
        if self.done == self.batches():
            return self.epoch + 1, 0
        return self.epoch, self.start + 8 * self.done


STEPS = st.lists(
    st.one_of(
        st.just(("begin",)),
        st.tuples(st.just("take"), st.integers(0, 3)),  # by the iteration begun so many ago
        st.tuples(st.just("set_epoch"), st.integers(0, 3)),
        st.tuples(st.just("load"), st.integers(0, 2), st.sampled_from([0, 5, 8, 16, 20])),
        st.tuples(st.just("end"), st.integers(0, 3)),  # as of "take"
        st.just(("end",)),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
@example([("load", 1, 8), ("begin",), ("take", 0), ("set_epoch", 1), ("begin",)])
def test_any_order_of_calls_leaves_the_state_that_a_simple_model_predicts(steps):
    cursor, model = OrderedBatches(ORDER, 8), Model()
    begun: list[list] = []  # place, how many it has taken
    for name, *values in steps:
        if name == "begin":
            if model.loaded is not None and model.epoch < model.loaded[0]:
                with pytest.raises(LoaderError, match=r"state of epoch . was loaded, but then"):
                    cursor.begin()
                continue
            if model.done:
                model = Model(model.epoch + 1)
            live = cursor.begin()
            assert (live.batches.epoch, live.batches.start) == (model.epoch, model.start)
            begun.append([live, 0])
            model = replace(model, done=0, live=live)
        elif name == "take":
            if len(begun) <= values[0]:
                continue
            taker = begun[-1 - values[0]]
            live, taken = taker
            if taken == len(live.batches):
                continue
            if live is model.live:
                cursor.check(live)
                cursor.took(live, live.batches[taken])
                taker[1] += 1
                model = replace(model, done=taken + 1, loaded=None)
            else:
                for late in (
                    lambda at=live: cursor.check(at),
                    lambda at=live, n=taken: cursor.took(at, at.batches[n]),
                ):
                    with pytest.raises(LoaderError, match=ENDED):
                        late()
        elif name == "set_epoch":
            cursor.set_epoch(values[0])
            if model.loaded is not None and values[0] == model.loaded[0]:
                model = replace(model, epoch=values[0], start=model.loaded[1], done=0)
            elif model.done or values[0] != model.epoch:
                model = Model(values[0], loaded=model.loaded)
            model = replace(model, live=None)
        elif name == "load":
            epoch, samples = values
            cursor.load_state_dict(cursor.state_dict() | {"epoch": epoch, "samples": samples})
            place_of_state = (epoch + 1, 0) if samples == 20 else (epoch, samples)
            model = Model(*place_of_state, loaded=place_of_state)
        elif values and len(begun) > values[0]:
            live = begun[-1 - values[0]][0]
            cursor.end(live)
            if live is model.live:
                model = replace(model, live=None)
        else:
            cursor.end()
            model = replace(model, live=None)
        assert place(cursor) == model.state()
        assert (cursor.epoch, cursor.loaded) == (model.epoch, model.loaded)
        other = pickle.loads(pickle.dumps(cursor))
        assert place(other) == model.state()


# --------------------------------------------------------------------------------- each by itself


def test_a_refused_state_epoch_or_beginning_changes_nothing():
    cursor = OrderedBatches(ORDER, 8)
    live = cursor.begin()
    cursor.took(live, live.batches[0])
    with pytest.raises(OptionError, match="this release reads states with the keys"):
        cursor.load_state_dict({})
    with pytest.raises(OptionError, match="epoch is -1"):
        cursor.set_epoch(-1)
    cursor.took(live, live.batches[1])
    assert place(cursor) == (0, 16)


@pytest.fixture
def joining(monkeypatch):
    """Has a function called where an iteration that begins looks for its rank."""

    def of_call(call) -> OrderedBatches:
        made = OrderedBatches(ORDER, 8, rank=None, world_size=None)
        group = SimpleNamespace(is_available=call)
        monkeypatch.setitem(sys.modules, "torch.distributed", group)
        return made

    return of_call


def test_a_refused_beginning_changes_nothing(joining):
    def refused():
        raise LoaderError("not here")

    cursor = joining(refused)
    with pytest.raises(LoaderError, match="not here"):
        cursor.begin()
    assert place(cursor) == (0, 0)


def test_a_signal_handler_may_close_a_loader_that_is_about_to_begin(joining):
    cursor, handled = joining(lambda: signal.raise_signal(signal.SIGUSR1)), []
    before = signal.signal(signal.SIGUSR1, lambda *_: (cursor.end(), handled.append(1)))
    try:
        cursor.begin()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(handled) >= 1 and place(cursor) == (0, 0)
