"""Which samples come next? Orders of an epoch, cut into batches for a rank."""
