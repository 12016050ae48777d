"""Middleware of the application."""
