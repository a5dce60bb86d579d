"""What came before the Transformer, small and readable, on the same data."""
