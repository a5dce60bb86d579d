"""A pass of any module records itself: every number an address, every address its arithmetic.

source         the line that called a function, and the variable that it fills
recorder       each function of a pass with its inputs and results
rules          which numbers of its inputs a part of a result needs, and which it only moves
written_out    fused functions in steps
opening        one number and the operands that give it
linearised     a pass made linear around the values that it had
causes         what a number is the sum of, edges and patches
module_trace   a pass by address
outside        models that are not ours
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
