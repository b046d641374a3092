"""Images, most of them JPEGs, to pixels at the target geometry."""

from sa1bpack.lazy import names_of

# Imported on first use: converting stored pixels needs neither PIL nor a JPEG decoder, and writing
# RGB none of the other kernels.
__all__, __getattr__, __dir__ = names_of(__name__)
