"""Whether an answer to a mathematical question equals the reference answer.

statements   the one final answer that a text states, after its thinking
prose        what sentences say about the answer, and whether they deny it, doubt it or give up
spelling     one spelling for what Unicode and LaTeX write in many ways
quantity     plain numbers with their units, compared exactly and without sympy
labels       words, choices, times of day
equality     relations, lists and pairs; parts are compared one by one
symbolic     everything else, by math-verify, within limits
"""

from fspo.tasks.verify.equality import equal, reference
from fspo.tasks.verify.statements import MODES, Mode, final_answer

__all__ = ["MODES", "Mode", "equal", "final_answer", "reference"]
