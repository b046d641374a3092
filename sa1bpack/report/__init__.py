"""What a person looks at: summaries, pictures and pages of a pack.

info           what a pack holds, as text
show           samples as a picture: choose, then contact_sheet or large_picture
write_report   a page about a pack: verification, survey, then page

pixels         a sample's pixels as RGB, whatever the layout
subject        a sample as a picture needs it
unreadable     what stands in the place of one that is damaged
drawing        its image under masks, boxes and points; palette has the colours
lettering      text in pictures
records        what the packer recorded beside the data, checked
survey         distributions, from some shards
histogram      counts in bins with round edges
chart          histograms as inline SVG; page_charts are those of a page
markup         HTML that is escaped by construction; style has the style sheet
output         where a picture or a page may be written to
"""
