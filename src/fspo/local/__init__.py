"""The engine that runs on one machine: models, rollout, and the forward that trains."""
