"""From texts to vectors: which encoders there are, and the one queue that feeds each."""
