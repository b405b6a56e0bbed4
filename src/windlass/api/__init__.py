"""Our own HTTP API, `/api/v1`. Thin: a route reads the request, calls the engine and returns a form.

`framework` defines routes; `app` has the table of all routes and the ASGI application. The OpenAPI document and the
tests of roles and keys are made from that table, so that they cover every new route.
"""
