"""Encoders in torch, before export."""
