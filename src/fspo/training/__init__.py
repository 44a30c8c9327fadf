"""The training loop: warm-up, collection, update, evaluation, checkpoints."""
