"""Our own API over HTTP, `/api/v1`. Thin: a route reads what was sent, calls the engine, and spells the answer.

`route.py` holds what a route is, `api.py` the table of all of them and the ASGI application; the OpenAPI document, the
test of roles and the check for keys are all made from that table, so that a new route is covered unasked.
"""
