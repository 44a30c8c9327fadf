"""Every architecture of the fast path, one after the other."""

from __future__ import annotations

import pytest
from policies import MODELS, make

from fspo.local.models import Policy


@pytest.fixture(params=list(MODELS))
def policy(request: pytest.FixtureRequest) -> Policy:
    return make(request.param)
