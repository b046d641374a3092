"""The order in a shard is that of the tar, whoever was faster."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_tars import SMALL, contents

import sa1bpack
from sa1bpack.packing import source_packer
from sa1bpack.packing.sample import Buffers, attempt


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_order_of_outcomes_samples_are_written_in_that_of_the_tar(
    sources, undisturbed, tmp_path, monkeypatch, seed
):
    rng = random.Random(seed)

    class Shuffled:
        """Makes the samples of up to seven pairs in random order."""

        def __init__(self, run):
            self._options, self._progress = run.state.options, run.progress
            self._threads, self._waiting = ThreadPoolExecutor(1), []

        def decode(self, source, pair, bytes_read):
            made = source_packer.Future()
            self._waiting.append((made, pair))
            if len(self._waiting) > rng.randrange(7):
                self._make_all()
            else:  # at the latest when the reader has ended
                self._threads.submit(self._make_all)
            return made

        def _make_all(self):
            rng.shuffle(self._waiting)
            while self._waiting:
                made, pair = self._waiting.pop()
                buffers = Buffers(self._options)
                outcome = attempt(pair.file_name, pair.jpeg, pair.json, self._options, buffers)
                made.set_result((outcome, lambda: None))

        def stop(self):
            self._threads.shutdown()

        def close(self):
            pass

    monkeypatch.setattr(source_packer, "InlineDecoder", Shuffled)
    sa1bpack.pack(sources, tmp_path / "pack", workers=1, **SMALL)
    assert contents(tmp_path / "pack") == undisturbed
