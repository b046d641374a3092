"""Members of public classes that are for other packages of sa1bpack alone.

They are in neither the API reference nor tests/public_api.txt, and may change in any release.
"""

INTERNAL = {
    "Buckets": ("arranged", "as_text", "order"),
    "ColorJitter": ("ranges", "used"),
    "CutMix": ("draw",),
    "Collate": ("limit_to",),
    "Dataset": ("locate", "locate_many", "narrowed", "rows_at", "shard_bounds"),
    "Frame": ("covered", "kept", "places", "steps", "visible"),
    "Mix": ("begin", "dataset", "end_epoch", "has_equal_epochs", "new_crew"),
    "Mixup": ("draw",),
    "Loader": ("end_epoch", "has_begun", "pipeline_threads", "threads"),
    "OrderedBatches": (
        "begin",
        "check",
        "end",
        "go_to",
        "most_samples",
        "position_in",
        "took",
    ),
    "PackOptions": ("as_text", "from_json", "keeps_all", "kept_keys", "layout", "to_json"),
    "Pipeline": ("needed_keys",),
    "ReadingOptions": ("batches", "choices", "chosen", "layout", "relate"),
    "Relate": ("nbytes", "of", "of_masks", "scratch_bytes"),
    "RunBatch": ("ends", "slice"),
    "Schedule": ("at", "constant", "largest", "map", "text", "until"),
}
