"""Output for people and other programs: annotations written again, summaries, pictures, pages.

Modules:
    annotations: SA-1B's JSON files, or one COCO instances file; shards are checked before any of
        their content is used.
    info: what packs hold, by manifests, indexes and shards, as text; several as one.
    show: samples of a pack, a tar or a batch as a picture, a small one for notebooks.
    report: a page about a pack: verification, survey of some shards, and HTML by the templates.
    look: what pictures show besides pixels, as options.
    subject, batch_samples: a sample, with what a picture needs of it: of a dataset, of a batch.
    feature_maps: spatial features as pictures: labels, principal components.
    painting: masks on pixels, from exact runs or from bits, with outlines; colours of ids.
    marks: boxes, points, prompts and numbers over them; lettering: text by PIL's own font.
    drawing: the picture of a sample, and those beside it.
    sheet, large: several samples with captions; one with a table of its masks.
"""
