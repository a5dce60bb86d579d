"""The server (extra ``serve``): models behind the paths of OpenAI's API, and a look inside them.

app            routes, openapi.json                schemas, fields   request bodies, with their bounds
completions    texts continued                     errors            invalid fields in a sentence
chat           conversations                       logprobs          tokens with log-probabilities
generating     code that both share                grammars          answers held to a schema
prompts        texts as ids, off the event loop    metrics           Prometheus
tracking       requests through the engine         inspecting        a look inside
registry       models with their engines           middleware        id, key, bounds, log
encoding       vectors, ranks, labels              protocol, server  connections, signals, the process
searching      blanks, translations

Errors, streams and access control are those of the page: asgi.
"""
