"""HTTP code that the page's server and the API's share.

replies        errors, JSON, work that ends when its client disconnects
event_stream   server-sent events
security       Host, Origin, JSON and password checks; a token where others can reach the page
limits         the most that one request may ask for
listening      a socket on a host and port, or a sentence
"""
