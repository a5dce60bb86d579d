"""The glossary's live numbers, a function a term: computed on the small model that comes with the
package.

Where that model has no such part (it is a decoder of plain multi-head attention) a small one of the
family stands in, its weights drawn, or a published shape is counted; the sentence says so.

shipped   one pass of the model over a sentence
blocks    tokens, positions, attention, the block, three shapes
uses      the head and decoding, training
scale     efficient attention, experts, looking inside, running
"""

from . import blocks, scale, uses

LIVE = {
    name: make
    for page in (blocks, uses, scale)
    for name, make in vars(page).items()
    if getattr(make, "__module__", "") == page.__name__ and not name.startswith("_")
}
"""The function of each term, by the term's key."""
