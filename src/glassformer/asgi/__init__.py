"""What the page's server and the API's share: where they listen, and who may ask.

listening   a socket on a host and port, or a sentence
security    Host, Origin and JSON checks; a token where others can reach the page
"""
