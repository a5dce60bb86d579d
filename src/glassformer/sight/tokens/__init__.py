"""The tokens explorer: a text under several tokenizers, and how each word came to its pieces."""
