"""The sentences that an encoder learns from, and the batches they come in."""
