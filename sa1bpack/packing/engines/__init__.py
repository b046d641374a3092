"""Who decodes: this process (`inline`), or worker processes (`processes`).

Both drive the same Lanes with the same `make_sample`, and lead to the same bytes. What is made is
written by the process that keeps the order, in threads that its shards share.
"""
