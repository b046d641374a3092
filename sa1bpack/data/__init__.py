"""Reading a pack for training.

One sample goes: shards (a memory map) -> sample (views of it) -> collate (one copy into a batch).

    shards      the shards of a pack, opened and checked when first needed
    sample      what a sample is: views of one row, in the form that was asked for
    select      which rows a dataset holds
    columns     metadata of all samples or masks as arrays
    dataset     the map-style dataset; `sa1bpack.open` is there
    choose      which masks of a sample, where a batch has room for fewer
    batch       the plan of a batch: keys, shapes, and the copy of one sample
    unpack      mask bits to bool, straight into a buffer
    collate     samples to a batch of torch tensors
    order       orders of samples as pure functions
    samplers    orders of an epoch: sequential, shuffled, locally shuffled, weighted
    ordered_batches  an order cut into batches for a rank, with a state that can be saved
    ring        reused buffers between threads and the consumer
    feed        where the samples of a batch are, looked up for many at once
    fill        the copy of a batch into a slot, in compiled code
    stream_copy copying past the processor's caches
    crew        the threads that fill the ring
    device      copies to an accelerator
    loader      `sa1bpack.Loader`, which ties these together
    loader_plan the memory that it takes, in numbers
    dataloader  a well-configured torch DataLoader
    launch      ranks, threads and checks, shared by loader and dataloader

Reading samples alone imports neither torch nor numba; collate and all from crew on import torch.
"""
