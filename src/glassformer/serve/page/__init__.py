"""The page in a browser (extra ``page``): a local server over traces, generation, tokenizers and
running trainings.

routes     routes
fields     what requests hold
models     the models that are offered, loaded when first asked for
runs       traces that are kept, the latest
measures   a model's heads, one word in two contexts
tensor_replies    parts of a trace as safetensors, within a bound
generation  generation token by token, tokenizers, vocabularies
events     training folders, read as they grow
run_records  samples and expert loads that a training wrote
live       a trace as a widget in a notebook (extra ``live``), answered by the kernel

Errors, streams and access control are those of the API: asgi.
"""
