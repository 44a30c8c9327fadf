"""Sampling answers to prompts, and the conversion between text and tokens."""
