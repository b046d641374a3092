"""How do several packs become one? What is taken from each, and files without their bytes."""
