"""The wrapper: a worker that holds the client certificate, claims tasks and runs operators."""
