"""Rows of bytes by key."""

from pathlib import Path


class Manager:
    def __init__(self, path, item_size):
        self.path, self.item_size = Path(path), item_size

    def write(self, key, value):
        assert len(value) == self.item_size
        (self.path / key).write_bytes(value)

    def read(self, key):
        return (self.path / key).read_bytes()
