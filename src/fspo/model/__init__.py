"""The language model: loading, the forward pass for training, decoding, log-probs."""
