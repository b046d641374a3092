"""Output for people and other programs: annotations written again, summaries, pictures, pages.

Modules:
    annotations: SA-1B's JSON files, or one COCO instances file; shards are checked before any of
        their content is used.
    info: what packs hold, by manifests, indexes and shards, as text; several as one.
    show: samples of a pack, a tar or a batch as a picture, a small one for notebooks.
    report: a page about a pack: verification, survey of some shards, and HTML by the templates.
    subject: a sample, with what a picture needs of it: of a dataset or of a batch.
    drawing: PIL: the image under masks, boxes and points; sheets of several, large ones.
    painting: masks on pixels, from exact runs or from bits, with outlines; colours of ids.
"""
