"""Worker processes that decode, and the thread that feeds them and keeps the order.

They drive the same SourcePackers with the same `make_sample` as `source_packer.pack_inline`, so
they produce the same bytes. The process that keeps the order also writes, in threads.
"""
