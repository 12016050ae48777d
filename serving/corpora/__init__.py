"""Documents with their vectors: what a corpus is, how it is opened, searched, copied and put back."""
