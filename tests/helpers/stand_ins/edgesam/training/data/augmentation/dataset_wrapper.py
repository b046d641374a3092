"""Samples with the embeddings that were written under their keys."""

from pathlib import Path

import numpy as np


class Manager:
    """Rows of bytes by key."""

    def __init__(self, path, item_size):
        self.path, self.item_size = Path(path), item_size

    def write(self, key, value):
        assert len(value) == self.item_size
        (self.path / key).write_bytes(value)

    def read(self, key):
        return (self.path / key).read_bytes()


class DatasetWrapper:
    def __init__(self, dataset, logits_path, topk, write, num_embedding=64 * 64):
        self.dataset, self.keys = dataset, dataset.get_keys()
        self._manager = Manager(logits_path, 4 + 2 * topk * num_embedding)

    def get_manager(self):
        return self._manager

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        row = self._manager.read(self.keys[index])
        seed = int(np.frombuffer(row[:4], np.int32))
        return self.dataset[index], (np.frombuffer(row[4:], np.float16), np.int32(seed))
