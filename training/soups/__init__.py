"""Averages of encoders, and what may go into them."""
