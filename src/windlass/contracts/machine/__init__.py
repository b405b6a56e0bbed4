"""The machine contract: one task, one machine that lives for it."""
