"""The samples that come next: orders of an epoch, cut into batches for a rank."""
