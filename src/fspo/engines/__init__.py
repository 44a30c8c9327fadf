"""The objectives and their records inside other people's trainers."""
