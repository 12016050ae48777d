"""Operation of the server: API keys, limits, logs, metrics, traces, threads and failpoints."""
