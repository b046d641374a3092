"""Reads past the page cache are those of `os.pread`, and each request has a status of its own."""

import errno
import os
from types import FunctionType

import numpy as np
import pytest
from forked import forked_child
from hypothesis import given, settings
from hypothesis import strategies as st
from page_cache import BLOCK, aligned

from sa1bpack.disk import aio
from sa1bpack.errors import ResourceShortage

DEPTH = 64  # requests that one call may have in the queue
SIZE = 75 * BLOCK + 1234  # of the file: it does not end with a block


@pytest.fixture(scope="module")
def path(direct_folder):
    content = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
    content.tofile(direct_folder / "content")
    return direct_folder / "content"


@pytest.fixture(scope="module")
def file(path):
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(scope="module")
def context():
    context = aio.Context()
    yield context
    context.close()


def requests_of(file: int, spans):
    """Requests for the blocks that cover spans (begin, end), and what their memory has of each."""
    covers = [(begin // BLOCK * BLOCK, -(-end // BLOCK) * BLOCK) for begin, end in spans]
    memory = aligned(sum(stop - start for start, stop in covers))
    memory[:] = 7
    requests = []
    views = []
    at = 0
    for (begin, end), (start, stop) in zip(spans, covers, strict=True):
        requests.append((file, start, stop - start, memory.ctypes.data + at, end - start))
        views.append(memory[at + begin - start : at + end - start])
        at += stop - start
    return np.array(requests, aio.REQUEST), views


def check(context: aio.Context, file: int, path, spans) -> None:
    requests, views = requests_of(file, spans)
    assert context.read(requests).tolist() == [0] * len(spans)
    content = path.read_bytes()
    assert [view.tobytes() for view in views] == [content[begin:end] for begin, end in spans]


@st.composite
def any_span(draw) -> tuple[int, int]:
    begin = draw(st.integers(0, SIZE - 1))
    return begin, draw(st.integers(begin + 1, min(SIZE, begin + 10 * BLOCK)))


@given(st.lists(any_span(), max_size=DEPTH + 20))
@settings(max_examples=30)
def test_spans_are_read_as_pread_reads_them(context, file, path, spans):
    check(context, file, path, spans)


def test_more_requests_than_fit_in_the_queue_are_all_read(context, file, path):
    """The cover of the last bytes may exceed the file."""
    rng = np.random.default_rng(1)
    begins = rng.integers(0, SIZE - 1, 5 * DEPTH + 3)
    ends = np.minimum(begins + rng.integers(1, 3 * BLOCK, len(begins)), SIZE)
    edges = [(SIZE - 1, SIZE), (0, SIZE), (SIZE - BLOCK, SIZE)]
    check(context, file, path, [*zip(begins.tolist(), ends.tolist(), strict=True), *edges])


@pytest.mark.parametrize("left", [0, 1, BLOCK, 3 * BLOCK, 3 * BLOCK + 5])
def test_a_file_that_ends_too_early_is_cut_short(context, direct_folder, left):
    (direct_folder / "short").write_bytes(bytes([1]) * left)
    file = os.open(direct_folder / "short", os.O_RDONLY | os.O_DIRECT)
    spans = [(left, left + 1), (0, left + 1), (20 * BLOCK, 21 * BLOCK)]
    if left:
        spans.append((0, left))
    requests, views = requests_of(file, spans)
    assert context.read(requests).tolist() == [aio.CUT_SHORT] * 3 + [0] * (left > 0)
    assert [view.tobytes() for view in views[3:]] == [bytes([1]) * left] * (left > 0)
    os.close(file)


def test_an_error_is_of_its_request_alone(context, file, path):
    spans = [(k * BLOCK, k * BLOCK + 100) for k in range(70)]
    requests, views = requests_of(file, spans)
    requests["file"][[3, 69]] = 1 << 20  # not open
    requests["position"][5] += 1
    requests["address"][6] = 1 << 40 | BLOCK  # no memory of this process
    expected = dict.fromkeys(range(70), 0)
    expected |= {3: errno.EBADF, 5: errno.EINVAL, 6: errno.EFAULT, 69: errno.EBADF}
    assert dict(enumerate(context.read(requests).tolist())) == expected
    content = path.read_bytes()
    for view, (begin, end), failed in zip(views, spans, expected.values(), strict=True):
        assert failed or view.tobytes() == content[begin:end]
    check(context, file, path, spans)  # and the queue is as before


def variant(**changes):
    """`read_all`, compiled with other values of the module's constants."""
    found = {**vars(aio), **changes}
    if "MAX_READ_BYTES" in changes:
        found["fill_block"] = aio.njit(FunctionType(aio.fill_block.py_func.__code__, found))
    return aio.njit(FunctionType(aio.read_all.py_func.__code__, found))


def test_a_request_beyond_the_limit_of_a_read_takes_several(context, file, path, monkeypatch):
    monkeypatch.setattr(aio, "read_all", variant(MAX_READ_BYTES=3 * BLOCK))
    spans = [(0, SIZE), (5, 6), (BLOCK + 1, 9 * BLOCK), (SIZE - 7 * BLOCK, SIZE)]
    check(context, file, path, spans)


def test_a_queue_that_cannot_be_waited_for_is_an_error_and_can_be_closed(file, monkeypatch):
    monkeypatch.setattr(aio, "read_all", variant(GET_EVENTS=100_000))  # no such system call
    broken = aio.Context()
    requests, (view,) = requests_of(file, [(0, SIZE)])
    with pytest.raises(OSError) as found:
        broken.read(requests)
    assert found.value.errno == errno.ENOSYS
    broken.close()  # waits for the request, which writes to the memory
    assert not (view == 7).all()


# ------------------------------------------------------------------------------------ the contexts


def test_a_forked_child_makes_its_own_contexts(file, path):
    inherited = aio.CONTEXTS.take()
    kept = aio.Context()
    aio.CONTEXTS.append(inherited)
    with forked_child() as child:
        if child == 0:
            kept.close()
            own = aio.CONTEXTS.take()
            assert own is not inherited
            check(own, file, path, [(0, SIZE), (17, 18)])
    for context in (inherited, kept):
        check(context, file, path, [(0, SIZE)])
    assert aio.CONTEXTS.take() is inherited
    aio.CONTEXTS.append(inherited)
    kept.close()


def test_when_all_contexts_of_the_system_are_taken_the_error_names_limit_and_remedy(monkeypatch):
    monkeypatch.setattr(aio, "set_up", lambda depth: -errno.EAGAIN)
    with pytest.raises(ResourceShortage, match=r"fs\.aio-max-nr = \d+\. .*io='cached'.*sysctl -w"):
        aio.Contexts().take()
