"""What can this machine do with this pack? Ceilings, loaders, and the settings that suit both."""
