"""Scores answers: in the trainer's process if that is safe, else in processes that can be killed."""

from fspo.tasks.scoring.scorer import Score, Scorer, first_messages

__all__ = ["Score", "Scorer", "first_messages"]
