"""What does a batch look like? Fields, layouts, mask choice, collation, kernels that copy."""
