"""See through a forward pass: its plan, the address of every number, and the arithmetic behind
each.

plan           operations, and how a description adds them
descriptions   what each block type computes (recurrent: the readers)
kinds          what an operation of each kind computes, and what one cell of it is made of
traced_pass    a pass: recorded and computed values by address
explanation    one number's operands, terms and sentence
"""

from .explanation import Explanation, Operand
from .plan import Op, Plan, describes
from .traced_pass import Trace, trace

__all__ = ["Explanation", "Op", "Operand", "Plan", "Trace", "describes", "trace"]
