"""Members of public classes that are for other packages of sa1bpack alone.

They are in neither the API reference nor tests/public_api.txt, and may change in any release.
"""

INTERNAL = {
    "Buckets": ("arranged", "order", "waste", "wasted"),
    "Collate": ("plan",),
    "Dataset": ("locate", "locate_many", "rows_at", "shard_bounds"),
    "OrderedBatches": ("current", "cursor", "first_step", "most_samples", "part_of", "sizes"),
    "PackOptions": ("check_same", "layout", "rule", "to_json"),
    "ReadingOptions": ("batches", "choices", "layout", "mask_schedule", "relate"),
    "Schedule": ("at", "map", "until"),
}
