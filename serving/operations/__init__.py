"""Operation of a server: keys, limits, logs, metrics, traces, threads and failpoints."""
