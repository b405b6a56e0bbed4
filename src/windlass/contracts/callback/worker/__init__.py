"""Workers of the callback contract: part of any HTTP service, in which an app's handlers run what is pushed to it."""

from windlass.contracts.callback.worker.worker import Answer, CallbackOptions, CallbackWorker

__all__ = ["Answer", "CallbackOptions", "CallbackWorker"]
