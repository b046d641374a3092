"""Tars and folders read as they are, without a pack: what is sample i of a tar?

::

    tars                      which tars and folders
    source.pairs.PairReader   which members make a pair, and which are rejected
    tar_index                 where the two halves of each pair are; kept beside the tar
    seek_points               random access into a gzip stream
    pair_bytes                pair i → bytes of its JPEG and its record
    decoding                  the packer's step and the dataset's: bytes → sample
    sample_cache              decoded samples in memory or on disk
    dataset, streaming        TarDataset, IterableTarDataset
"""
