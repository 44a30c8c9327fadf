"""What a run needs of a device, computed from the model's sizes without loading it: memory by part, and time."""
