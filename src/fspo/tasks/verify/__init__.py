"""Whether an answer to a mathematical question equals the reference answer.

statements   the one final answer that a text states, after its thinking and unless it takes it back
equality     whether that answer equals the reference: exact numbers with units, words, and all else by math-verify
"""

from fspo.tasks.verify.equality import equal, reference
from fspo.tasks.verify.statements import MODES, Mode, final_answer

__all__ = ["MODES", "Mode", "equal", "final_answer", "reference"]
