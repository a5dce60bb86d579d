"""One training on several processes, from outside of the model: nothing in ``nn/`` knows of it.

mesh         who takes part: ranks, axes, groups, and what they tell each other
collectives  what they tell each other within a pass, with its gradient
ring         the context axis: each process holds some columns of a row, keys and values travel round
"""
