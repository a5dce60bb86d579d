"""The server (extra ``serve``): models behind the paths of OpenAI's API, and a look inside them.

app            routes, openapi.json             schemas     request bodies and their fields
completions    texts continued                 chat        conversations
scored_tokens  log-probabilities of tokens     loading     models that a server begins with
tools          calls of tools                  responses   conversations as items
grammars       answers held to a schema
prometheus     counters and histograms
lanes          threads and bytes that clients share
served_models  models with their engines; texts as ids, off the event loop; a request to a model
inspecting     a look inside                   encoding    vectors, ranks, labels
searching      blanks, translations            server      connections, signals, the process

Errors, streams and access control are those of the page: asgi.
"""
