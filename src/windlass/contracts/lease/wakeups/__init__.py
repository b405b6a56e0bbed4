"""Wake-up messages: for which tasks they are sent, and dead letters."""
