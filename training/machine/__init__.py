"""What the machine has, and where the tensors are."""
