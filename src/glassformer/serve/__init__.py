"""The server (extra ``serve``): models behind the paths of OpenAI's API, and a look inside them.

app            routes, openapi.json             schemas     request bodies and their fields
completions    texts and conversations continued  grammars   answers held to a schema
tracking       a request of the API: id, key, log line, body, answer; its requests to the engine
metrics        counters and histograms
registry       models with their engines; texts as ids, off the event loop
inspecting     a look inside                   encoding    vectors, ranks, labels
searching      blanks, translations            server      connections, signals, the process

Errors, streams and access control are those of the page: asgi.
"""
