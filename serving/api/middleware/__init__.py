"""ASGI middleware of the application."""
