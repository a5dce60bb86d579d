"""Our exercises, a file each, in the format of docs/learn.md; they are read as text and run by the
worker."""
