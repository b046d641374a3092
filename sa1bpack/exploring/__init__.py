"""A page to look with: a server on this machine, and the page that it serves.

Modules:
    explore: `sa1bpack.explore`, which opens what is to be looked at, and starts the server.
    server: HTTP: which answer belongs to which path, one thread per connection, its end.
    access: who is let in: token, cookie, host, origin.
    answers: what the page learns, as JSON and JPEG.
    features: how features are shown: as text, numbers, or a picture.
    views: the images that meet a filter, found shard by shard, beside the answers.
    filters: ranges and conditions of a query, and which samples meet them.
    survey: the histograms, of some of the shards.
    shard_parts: the samples of a dataset, shard by shard.
    outlines: the outline of a mask as a path of SVG, exactly along its pixels.
    page: HTML, style and script, which load nothing from elsewhere.
"""
