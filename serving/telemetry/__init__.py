"""What the server says of itself: logs, metrics, traces."""
