"""Which objects of a frame are taken."""

import random


class EvalSampler:
    def sample(self, segments):
        return list(segments.keys())


class RandomUniformSampler:
    def __init__(self, num_frames, max_num_objects):
        assert num_frames == 1
        self.most = max_num_objects

    def sample(self, segments):
        keys = list(segments.keys())
        return random.sample(keys, min(self.most, len(keys)))
