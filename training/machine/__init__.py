"""Hardware, processes and placement of tensors."""
