"""How the masks of an image relate: overlap, containment, neighbours, hierarchy.

relate  the relations of a sample, of runs, or of bits; what each of them means
runs    kernels on exact runs
bits    kernels on packed bits
"""
