"""Samples with the embeddings that were written under their keys."""

import numpy as np

from .manager import Manager


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
