"""Methods from before the Transformer, small and readable, on the same data."""
