"""What can this machine do with this pack? Ceilings, loaders, and the settings that suit both.

bench        ceilings of memory, disk and device, then Loader and DataLoader, cold and warm
tune         settings of both, in turn, and the recommendation
"""
