"""`fspo audit`: how unfair is a run's clipping over length, or over any column, of any trainer's table?"""

from fspo.auditing.audit import audit
from fspo.auditing.results import Audit

__all__ = ["Audit", "audit"]
