"""One training on several processes, from outside of the model: nothing in ``nn/`` knows of it.

mesh         who takes part: ranks, axes, groups, and what they tell each other
collectives  what they tell each other within a pass, with its gradient
tensor       the tensor axis: each process holds a part of each matrix, by one table over config types
expert_parallel  the expert axis: each process holds some experts of every mixture, and tokens travel to them
ring         the context axis: each process holds some columns of a row, keys and values travel round
prefill      a long prompt read on the context axis, for one process to go on from
"""
