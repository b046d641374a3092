"""Who does the work: this process alone (`inline`), or worker processes (`processes`).

Both drive the same Lanes with the same `make_sample` and `ShardRows`, and lead to the same bytes.
"""
