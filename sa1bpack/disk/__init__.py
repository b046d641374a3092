"""Reading from the disk: past the page cache, and what there is to ask and tell that cache."""
