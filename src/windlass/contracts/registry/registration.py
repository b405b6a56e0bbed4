"""Registers the registry contract with the kernel: how step attempts are loaded and written."""

from __future__ import annotations

from windlass.contracts.registry.rules import StepAttempt, StepAttemptContext
from windlass.contracts.registry.step_try import StepAttemptTable, load_step_attempt_context
from windlass.store.contexts import register_loader
from windlass.store.writers import register_writer


def register() -> None:
    register_writer(StepAttempt, lambda session, attempts: StepAttemptTable(session).put_attempts(attempts))
    register_loader(StepAttemptContext, load_step_attempt_context)
