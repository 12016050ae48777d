"""Export of encoders to bundles and adapters."""
