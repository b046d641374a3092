"""Which process decodes: this one (`inline`), or worker processes (`processes`).

Both drive the same SourcePackers with the same `make_sample`, so they produce the same bytes. The
process that keeps the order also writes, in threads that its shards share.
"""
