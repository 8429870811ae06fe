"""Places that are not on a disk of this machine. Of a store, names, sizes, and byte ranges are
read, and nothing is written; an export writes its files to an object store.
"""
