"""One training on several processes, from outside of the model: nothing in ``nn/`` knows of it.

mesh        who takes part: ranks, axes, groups, and what they tell each other
"""
