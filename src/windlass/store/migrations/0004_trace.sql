-- The span that submitted a task, as W3C Trace Context spells it, so that its attempts belong to the same trace.
alter table windlass.task add column trace text;
