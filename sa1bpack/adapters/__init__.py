"""Samples and batches for other training code: one module per framework, which alone imports it."""
