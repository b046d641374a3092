"""Rows that come from files, tables and iterators: read once, and spooled beside the feature.

Modules:
    blocks: what a reader of rows yields; paths into records.
    ids: which image or mask an id, a file name or a path means.
    row_type: the type and shape of rows, found from the rows themselves and the options.
    spool: the temporary file of rows, from which shards are written in their order.
    open_rows: what the user gave, a file, a folder, a table or an iterator -> its reader.
    text_tables: JSON Lines, JSON, CSV and TSV.
    parquet: Parquet, with pyarrow.
    image_files: a file per image, .npy, .npz or .txt, in folders and tars.
    in_memory: iterators of (id, row), and tables of pandas and polars.
    read: a reader -> a `SpooledRows`, with progress and an account of what does not match.
"""
