"""Settings for all tests."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")
