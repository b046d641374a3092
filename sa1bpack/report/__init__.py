"""Views of a pack for people: summaries, pictures and pages.

info           what a pack holds, as text
show           samples of a pack, a tar or a batch as a picture
write_report   a page about a pack: verification, survey, then page

inline         a small picture of a dataset or a batch, for notebooks

subject        a sample, with what a picture needs of it; those of a `batch` in its own module
drawing        PIL: the image under masks, boxes and points, and text
sheets         several samples with captions, or a large one with a table of its masks
records        what packs hold, by their manifests, indexes and shards; several as one
survey         distributions, from some of the shards, and the charts of them
page           HTML, by the templates
output         where a picture or a page may be written to
"""
