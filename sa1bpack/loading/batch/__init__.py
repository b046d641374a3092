"""The form of a batch, and how it is filled: layouts, mask choice, kernels."""
