"""A pass of any module records itself: every number an address, every address its arithmetic.

operations     a recorded value and the call that gave it; the line of the call, the variable it fills
recorder       each function of a pass with its inputs and results
rules          which numbers of its inputs a part of a result needs, and which it only moves
written_out    fused functions in steps
opening        one number and the operands that give it
linearised     a pass made linear around the values that it had
causes         what a number is the sum of, edges and patches
plan, sides    the operations that a reader looks at, and what their sides are
structure      the attentions and the residual stream, found in a plan
module_trace   a pass by address
trace          the same of a model of ours: its own names, attention in the readable engine's steps
outside        models that are not ours
program        a pass that a browser computes
"""

from .causes import Causes, Patches
from .module_trace import ModuleTrace
from .opening import Explanation, Operand, Operands, explain

__all__ = [
    "Causes",
    "Explanation",
    "ModuleTrace",
    "Operand",
    "Operands",
    "Patches",
    "explain",
]
