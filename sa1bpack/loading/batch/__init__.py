"""What does a batch look like? Layouts, mask choice, collation, copy kernels."""
