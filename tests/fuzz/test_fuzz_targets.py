"""Every kept seed, and inputs that hypothesis derives from the seeds, over every fuzz target."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import JSON_TARGETS, SEEDS, mutate_json, seeds
from targets import TARGETS, forget

EXAMPLES = 40
SLOW_EXAMPLES = 8  # of targets that open and check a complete pack each time
SLOW = {"manifest", "shard_metadata", "array_metadata", "index", "offsets", "checksums"}
# Pieces with a meaning in one of the formats.
TOKENS = (
    b"\0", b"\xff", b"\0" * 512, b"\x1f\x8b\x08", b"[" * 2000, b"{", b"}", b'"', b"\\", b"-",
    b"1e999", b"9" * 400, b"NaN", b"null", b"/", b"..", b"\n", b"\xff\xda", b"\xff\xc0", b"o" * 40,
    b"|", b"\x80" + b"\xff" * 11, b"7777777777777", b"\xef\xbb\xbf", b"\x1b[2J",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def scratch():
    """Remove the targets' folder after the last test of this file."""
    yield
    forget()


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_passes(target):
    """Including those that once made the target fail."""
    assert seeds(target)
    for data in seeds(target):
        TARGETS[target](data)


def test_every_folder_of_seeds_belongs_to_a_target():
    assert {path.name for path in SEEDS.iterdir()} <= set(TARGETS)
    assert all(any(path.iterdir()) for path in SEEDS.iterdir())


@st.composite
def edited(draw, originals: list[bytes]) -> bytes:
    """A seed with up to four pieces removed, moved, or replaced."""
    data = draw(st.sampled_from(originals))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from((0, 0, 1, 1, 2, 8, 512, 10**6))))
        new = draw(
            st.sampled_from(TOKENS) | st.binary(max_size=8) | st.just(data[stop : stop + 512])
        )
        data = data[:start] + new + data[stop:]
    return data


@pytest.mark.parametrize("target", TARGETS)
def test_edited_seeds_raise_only_errors_of_sa1bpack(target):
    @settings(
        max_examples=SLOW_EXAMPLES if target in SLOW else EXAMPLES, deadline=None,
        derandomize=True, database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(edited(seeds(target)))
    def check(data):
        TARGETS[target](data)

    check()


@pytest.mark.parametrize("target", JSON_TARGETS)
def test_changed_json_raises_only_errors_of_sa1bpack(target, request):
    """With --torture with other random numbers, and many more of them."""
    rounds = SLOW_EXAMPLES if target in SLOW else 2 * EXAMPLES
    rounds = 3000 if request.config.getoption("torture") else rounds
    rng = random.Random(f"{target} {request.config.getoption('torture_seed')}")
    originals = [data for data in seeds(target) if data.startswith(b"{") and len(data) < 20_000]
    for _ in range(rounds):
        data = mutate_json(rng.choice(originals), rng)
        if data is None:
            continue
        try:
            TARGETS[target](data)
        except BaseException as error:
            error.add_note(f"input: {data[:5000]!r}")
            raise
