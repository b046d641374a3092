"""Tars and folders read as they are, without a pack.

Modules:
    source.pairs.PairReader: which members make a pair, and which are rejected.
    tar_index: where the halves of each pair are, kept beside the tar; their bytes.
    seek_points: random access into a gzip stream.
    decoding: the packer's step and the dataset's: bytes → sample.
    dataset, streaming: TarDataset, IterableTarDataset.
"""
