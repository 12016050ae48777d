"""Server operation: API keys, limits, logs, metrics, traces, threads and failpoints."""
