-- Which claim began the current attempt: asked for when the reply to the claim was lost.
alter table windlass.task add column claim_id uuid;
