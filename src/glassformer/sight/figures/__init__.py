"""Results that show themselves: in a notebook, as a page, a picture, a table, tensors. No torch
here.

drawing    marks (rectangles, words, lines, rasters) as SVG or PNG
charts     a heat map, curves, a table: each as HTML without scripts, and as a drawing
shown      what a result derives from to have ``_repr_html_`` and ``save``
progress_bar  how far a long work is, in a terminal and in a notebook
"""
