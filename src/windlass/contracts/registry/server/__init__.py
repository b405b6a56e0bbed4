"""`kagzi.WorkflowService` on an engine."""
