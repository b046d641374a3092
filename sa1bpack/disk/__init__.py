"""How bytes get off the disk without passing through the page cache."""
