"""What people and other programs look at: annotations written again, summaries, pictures, pages.

sa1b           one JSON file per image, as in SA-1B's tars; rows of a shard → records
coco           one COCO instances file
selection      of both: which images; shards are checked before any of their content is used

info           what a pack holds, as text
show           samples of a pack, a tar or a batch as a picture, a small one for notebooks
report         a page about a pack: verification, survey, then page

subject        a sample, with what a picture needs of it; those of a `batch` in its own module
drawing        PIL: the image under masks, boxes and points, and text
sheets         several samples with captions, or a large one with a table of its masks
holdings       what packs hold, by their manifests, indexes and shards; several as one
survey         distributions, from some of the shards, and the charts of them
page           HTML, by the templates
output         where all of these may write
"""
