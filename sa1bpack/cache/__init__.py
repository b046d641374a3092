"""What of a pack in an object store is here: a folder that is a sparse pack, filled as it is read.

To the rest of the package the folder is a pack: metadata and small arrays are complete, and the
files of the large arrays have their full length, with holes where nothing has been fetched. Before
samples are read, `Group.hold` fetches what is missing, and keeps it until it is released.

    origin      where a pack comes from: files, in whole or in ranges
    requests    the threads that ask for them, and what is counted of them
    contents    which arrays of a shard, or of a part of a side array, are fetched sample by sample
    blocks      which samples are present: shared memory in a file
    locks       who reads, fetches or removes a block: locks of the system, which a kill releases
    folder      the folder of a cache: its limit, and what is removed to keep it
    build       the folder of a shard, with everything but the large arrays
    fetch       one block on its way
    block_bytes the bytes of blocks: where they are, whether they are sound, how they are written
    uses        which blocks this process uses, and which thread makes each ready
    group       one shard in use: present samples held, missing ones fetched and checked
    packs       packs and side arrays, opened through a cache
    verify      a pack in an object store, checked
"""
