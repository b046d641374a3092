"""Choices of options that both a heavy module and the command, which loads quickly, declare."""

# Layouts of masks in a batch: see `loading.batch.spec.MaskLayout`.
MASK_LAYOUTS = ("padded", "concat", "padded_bits", "concat_bits")

# How much of a pack a report checks: see `export.report.Verification`.
REPORT_CHECKS = ("sample", "quick", "full", "none")
