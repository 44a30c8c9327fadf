"""The training loop and what it calls: warm-up, experience, update, metrics, evaluation, checkpoints."""
