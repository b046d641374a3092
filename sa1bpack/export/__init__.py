"""The annotations of a pack, written out again: SA-1B's own JSON, or COCO's.

selection   which images, shards checked before anything of them is used
records     rows of a shard → records
sa1b        one JSON file an image, as SA-1B's tars have them
coco        one COCO instances file
"""
