"""`fspo audit`: how unfair is a run's clipping, over length or over any column, from the table of any trainer."""

from fspo.audits.analysis import Audit, audit

__all__ = ["Audit", "audit"]
