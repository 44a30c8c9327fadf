"""Length-fair reinforcement learning from verifiable rewards for language models."""
