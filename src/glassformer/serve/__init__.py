"""The server (extra ``serve``): models behind the paths of OpenAI's API, and a look inside them.

app            paths                              schemas, fields   what may be asked, with its bounds
completions    texts continued                    errors            what is answered when something is wrong
chat           conversations                      limits            the most that one request may ask for
prompts        texts as ids, off the event loop   logprobs          tokens beside their log-probabilities
generating     what both share                    grammars          answers held to a schema or a grammar
following      requests through the engine        streaming         server-sent events
registry       the models                         metrics           what Prometheus reads
encoding       vectors, ranks, labels, blanks     inspecting        a look inside; answers: what small paths say
middleware     id, key, bounds, log               protocol, server  connections, signals, the process
bodies         JSON in and out, off the event loop
"""
