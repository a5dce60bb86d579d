"""The server (extra ``serve``): models behind the paths of OpenAI's API, and a look inside them.

app            routes, openapi.json                schemas, fields  request bodies, invalid fields
completions    texts and conversations continued   logprobs         tokens with log-probabilities
prompts        texts as ids, off the event loop    grammars         answers held to a schema
tracking       requests through the engine         metrics          Prometheus
registry       models with their engines           inspecting       a look inside
encoding       vectors, ranks, labels              middleware       id, key, bounds, log
searching      blanks, translations                server           connections, signals, the process

Errors, streams and access control are those of the page: asgi.
"""
