"""The pure heart: records, names, refs, ids and the commit graph. No I/O, nothing heavy to import."""
