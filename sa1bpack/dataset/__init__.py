"""What is sample i? Datasets over packs, samples as views, metadata as arrays."""
