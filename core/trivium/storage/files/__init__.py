"""The disk as the storage sees it: files, the data directory, encryption, threads."""
