"""Sampling answers to prompts: the local sampler, vLLM, and the conversion between text and tokens."""
