"""The order in a shard is that of the tar, whoever was faster."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

from small_tars import SMALL, contents

import sa1bpack
from sa1bpack.packing import source_packer
from sa1bpack.packing.sample import Buffers, attempt


def test_samples_are_written_in_the_order_of_the_tar(sources, undisturbed, tmp_path, monkeypatch):
    class Shuffled(source_packer.InlineDecoder):
        """Makes the samples of seven pairs at once, which takes any time."""

        def __init__(self, run):
            self._options, self._threads = run.state.options, ThreadPoolExecutor(7)

        def decode(self, source, pair, bytes_read):
            def make():
                time.sleep(random.random() / 50)
                given = pair.file_name, pair.jpeg, pair.json, self._options, Buffers(self._options)
                return attempt(*given), lambda: None

            return self._threads.submit(make)

        def stop(self):
            self._threads.shutdown()

    monkeypatch.setattr(source_packer, "InlineDecoder", Shuffled)
    sa1bpack.pack(sources, tmp_path / "pack", workers=1, **SMALL)
    assert contents(tmp_path / "pack") == undisturbed
