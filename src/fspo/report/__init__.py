"""What a run looked like: the page written after it or shown while it goes, and the display in the terminal."""
