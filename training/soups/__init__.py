"""Averages of encoders, and conditions on their ingredients."""
