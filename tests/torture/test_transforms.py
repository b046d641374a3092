"""Steps and options of pipelines on random degenerate batches, made in every way."""

import os
from importlib.util import find_spec

from degenerate_batches import compare


def test_a_degenerate_batch_has_one_result_however_it_is_made(torture):
    """By compiled kernels and by torch operations; some by interpreted Triton kernels, too."""
    first = torture.seed * 1_000_000
    count = torture.rounds(5, 3000)
    interpreted = torture.rounds(0, 60)
    if os.environ["TRITON_INTERPRET"] != "1" or not find_spec("triton"):
        interpreted = 0
    for seed in range(first, first + count):
        compare(seed, triton=seed < first + interpreted)
    torture.record("degenerate batches", count, "nothing")
