"""One pack made by many processes that share nothing but its folder: `--part K/N`, and `finalize`.

outcomes    what parts leave for `finalize`, in OUT/.parts
work        the working folder of one process, and those that killed ones left
state       takes the place of PackState for a part
run         `sa1bpack.pack_part`
finalize    `sa1bpack.finalize`

A part publishes complete shards under their final names, and each source's record in a file of its
own, atomically. It waits for no other part: they hold a shared lock on the pack, which only keeps
off what needs the folder for itself (`pack`, `repair`, `merge`, `finalize`).
"""
