"""The annotations of a pack, written out again: SA-1B's own JSON, or COCO's.

selection   which images; shards are checked before any of their content is used
records     rows of a shard → records
sa1b        one JSON file per image, as in SA-1B's tars
coco        one COCO instances file
"""
