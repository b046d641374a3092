"""Views of a pack for people: summaries, pictures and pages.

info           what a pack holds, as text
show           samples as a picture: choose, then contact_sheet or large_picture
write_report   a page about a pack: verification, survey, then page

pil            PIL, or an error that names the remedy
pixels         the pixels of a sample as RGB, for every layout
subject        a sample, with what a picture needs of it
unreadable     the tile that replaces a damaged sample
drawing        the image under masks, boxes and points; palette has the colours
lettering      text in pictures
sides          the side arrays of a pack
records        what the packer recorded beside the data, checked
survey         distributions, from some of the shards
histogram      counts in bins with round edges
chart          histograms as inline SVG; page_charts has those of a page
markup         HTML that is escaped by construction; style has the style sheet
output         where a picture or a page may be written to
"""
