"""See through a forward pass: its plan, the address of every number, and the arithmetic behind
each.

plan           operations, how a description adds them, and what a kind of operation is
descriptions   what each block type computes (sublayers: what stands in it; recurrent: the readers)
kinds          what an operation of each kind computes, and what one cell of it is made of
values         recorded and computed values of a pass, and the record of one number's operands
traced_pass    a pass by address
"""

from .plan import Op, Plan, describes
from .traced_pass import Trace, trace
from .values import Explanation, Operand

__all__ = ["Explanation", "Op", "Operand", "Plan", "Trace", "describes", "trace"]
